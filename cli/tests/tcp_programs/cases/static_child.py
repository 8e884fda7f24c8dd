# A statically linked program, which the library is not in, serves its standard input and output.
c, _ = listen().accept()
told()
echo_part(c)
print(subprocess.run([sys.argv[3]], stdin=c, stdout=c).returncode)
