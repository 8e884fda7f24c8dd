module wave/h2spec

go 1.19

require (
	github.com/fatih/color v1.13.0
	github.com/inconshreveable/mousetrap v1.0.1
	github.com/mattn/go-colorable v0.1.9
	github.com/mattn/go-isatty v0.0.14
	github.com/spf13/cobra v1.6.0
	github.com/spf13/pflag v1.0.5
	github.com/summerwind/h2spec v2.2.1+incompatible
	golang.org/x/net v0.1.0
	golang.org/x/sys v0.1.0
	golang.org/x/text v0.4.0
)
