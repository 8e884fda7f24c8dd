//! Errors of a script name the place and the fault; failed expectations are shown in packetdrill's notation.

use proptest::prelude::*;
use wave_tcp::datapaths::DatapathKind;
use wave_tcp_script::{BadScript, RunError, Script, mutants, run};

const LISTEN: &str = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
";

fn bad(text: &str) -> (usize, usize, String) {
    let BadScript { line, column, what } = Script::read(text).unwrap_err();
    (line, column, what)
}

fn result(text: &str) -> Result<(), RunError> {
    run(&Script::read(text).unwrap(), DatapathKind::default())
}

#[test]
fn syntax_errors_name_their_place_and_what_is_allowed() {
    let (line, column, what) = bad("+0 < S 0:0(0) win 1000\n+0 < Q 0:0(0) win 1000\n");
    assert_eq!((line, column), (2, 6));
    assert!(what.contains("FSRPUEW"), "{what}");
    for (text, place, allowed) in [
        ("+0 < S 0:1(0) win 9", (1, 10), "0 bytes after 0"),
        ("+0 < S 0:0(0) <mss 1>", (1, 15), "win N"),
        ("+0 < . 0:0(0) win 9", (1, 15), "ack N"),
        ("+0 > S 0:0(0) <mss>", (1, 19), "bytes"),
        ("+0 > S 0:0(0) <rss 1>", (1, 16), "sackOK"),
        ("+0 < S 0:0(0) win 9 <...>", (1, 22), "must be named"),
        ("x > S 0:0(0)", (1, 1), "`*`"),
        ("--tcp_ts_tick_usecs=10\n+0 > S 0:0(0)", (1, 21), "1000"),
        ("--mtu=1", (1, 1), "--tolerance_usecs"),
        ("/* no end", (1, 3), "*/"),
        ("`reboot`\n+0 > S 0:0(0)", (1, 1), "reboot"),
        ("`sysctl -q net.ipv4.tcp_sack=0`\n+0 > S 0:0(0)", (1, 1), "tcp_sack=0"),
        ("+0 %{ print(1) }%", (1, 4), "Python"),
        ("+0 > icmp unreachable", (1, 6), "only come in"),
        ("+0 < icmp unreachable nowhere [0:0(0)]", (1, 23), "port_unreachable"),
        ("+0 read(3, ..., 10", (1, 1), "`,`"),
        ("", (1, 1), "an event"),
    ] {
        let (line, column, what) = bad(text);
        assert!(what.contains(allowed), "{text}: {what}");
        assert_eq!((line, column), place, "{text}: {what}");
    }
}

#[test]
fn unsupported_calls_and_options_are_refused_by_name() {
    for (call, name) in [
        ("select(4) = 0", "select"),
        ("setsockopt(3, SOL_TCP, TCP_FASTOPEN, [1], 4) = 0", "TCP_FASTOPEN"),
        ("getsockopt(3, SOL_TCP, TCP_INFO, ..., ...) = 0", "TCP_INFO"),
        ("recv(3, ..., 10, MSG_PEEK) = 0", "MSG_NOSIGNAL"),
        ("setsockopt(3, SOL_SOCKET, SO_RCVBUF, [5000], 4) = 0", "powers of two"),
    ] {
        let text = format!("{LISTEN}+0 {call}");
        match result(&text) {
            Err(RunError::Bad(bad)) => {
                assert_eq!(bad.line, 4, "{call}");
                assert!(bad.what.contains(name), "{call}: {}", bad.what);
            }
            other => panic!("{call}: {other:?}"),
        }
    }
}

#[test]
fn a_failed_expectation_is_shown_in_packetdrill_notation() {
    let text =
        format!("{LISTEN}+0 < S 0:0(0) win 1000 <mss 700>\n+.1 > S. 0:0(0) ack 2 <mss 1460>\n");
    let Err(RunError::Failed(failure)) = result(&text) else { panic!("it passes") };
    assert_eq!(failure.line, 5);
    assert_eq!(failure.expected, "0.100000 > S. 0:0(0) ack 2 <mss 1460>");
    assert_eq!(failure.actual, "0.000000 > S. 0:0(0) ack 1 win 65535 <mss 1460>");
}

#[test]
fn an_unexpected_packet_fails_the_script() {
    let text = "0 < S 0:0(0) win 1000\n+1 `true`\n";
    let Err(RunError::Failed(failure)) = result(text) else { panic!("it passes") };
    assert_eq!(failure.actual, "0.000000 > R. 0:0(0) ack 1 win 0");
}

#[test]
fn a_blocking_call_must_return_in_time() {
    let waits = |end: &str| format!("{LISTEN}+0...{end} accept(3, ..., ...) = 4\n");
    assert!(matches!(result(&waits("0.1")), Err(RunError::Failed(_))));
    let served =
        "+.1 < S 0:0(0) win 1000\n+0 > S. 0:0(0) ack 1 <...>\n+.1 < . 1:1(0) ack 1 win 9\n";
    assert_eq!(result(&(waits("0.2") + served)), Ok(()));
    assert!(matches!(result(&(waits("0.5") + served + "+1 `true`")), Err(RunError::Failed(_))));
}

#[test]
fn expectations_that_are_not_compared_have_no_mutants() {
    // The line names no window, and its time is `*`: neither has a mutant.
    let text = "0 < S 0:0(0) win 1000\n* > R. 0:0(0) ack 1 <...>\n";
    let script = Script::read(text).unwrap();
    let all = mutants(&script);
    assert!(all.iter().all(|mutant| mutant.what != "window" && mutant.what != "time"));
    assert!(
        all.len() >= 8
            && all.iter().all(|mutant| run(&mutant.script, DatapathKind::default()).is_err())
    );
}

/// Random text made of fragments of the language.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "+0",
        "*",
        "0.1",
        "~",
        "...",
        "<",
        ">",
        "S",
        ".",
        "P.",
        "R",
        "-",
        "0:0(0)",
        "1:1001(1000)",
        "ack",
        "1",
        "win",
        "65535",
        "mss",
        "nop",
        "wscale",
        "sack",
        "TS val 1 ecr 2",
        ",",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "=",
        "icmp",
        "unreachable",
        "port_unreachable",
        "socket(..., SOCK_STREAM, IPPROTO_TCP)",
        "= 3",
        "bind(3, ..., ...) = 0",
        "listen(3, 1) = 0",
        "accept(3, ..., ...) = 4",
        "read(4, ..., 10) = 1",
        "`true`",
        "--tolerance_usecs=1",
        "\"",
        "/*",
        "\n",
        "4294967295",
        "urg",
        "bytes 1 2",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.join(" "))
}

proptest! {
    #[test]
    fn any_text_is_run_or_refused(text in prop_oneof![pieces(), any::<String>()]) {
        if let Ok(script) = Script::read(&text) {
            let _ = run(&script, DatapathKind::default());
        }
    }
}
