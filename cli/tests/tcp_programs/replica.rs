//! redis with a replica: replication goes over the agent in both directions.

use std::net::SocketAddr;

use crate::network::{AGENT, LINUX, Up, connect, in_a_network, within_patience};
use crate::{has_redis, redis_with, transcript};

/// Number of values to write at a time.
const VALUES: usize = 2_000;

fn values(from: usize) -> String {
    let value = |at: usize| "v".repeat(at * 37 % 3_000 + 1);
    (from..from + VALUES).map(|at| format!("SET key{at} {}\n", value(at))).collect()
}

#[test]
fn redis_replicates_over_the_agent_in_both_directions() {
    in_a_network(|| {
        if !has_redis() {
            return;
        }
        let up = Up::new();
        let more = [
            "--loglevel",
            "warning",
            "--repl-diskless-sync-delay",
            "0",
            "--enable-debug-command",
            "yes",
        ];
        let _over = redis_with(&up, true, AGENT, 6379, &more);
        let _linux = redis_with(&up, false, LINUX, 6380, &more);
        let (over, linux) = ((AGENT, 6379), (LINUX, 6380));
        connect(SocketAddr::from(over));
        connect(SocketAddr::from(linux));
        let say = |(ip, port), lines: &str| transcript(ip, port, lines).stdout;
        let lines = |at, lines: &str| String::from_utf8(say(at, lines)).unwrap();
        let follow = |replica, (master, port): ([u8; 4], u16)| {
            let master = std::net::Ipv4Addr::from(master);
            assert_eq!(lines(replica, &format!("REPLICAOF {master} {port}\n")), "OK\n");
            within_patience("the link to the master", || {
                let about = lines(replica, "INFO replication\n");
                about.contains("master_link_status:up").then_some(())
            });
        };
        let are_equal = || {
            within_patience("equal data", || {
                let [ours, theirs] = [over, linux].map(|at| lines(at, "DEBUG DIGEST\n"));
                (ours == theirs && ours.len() > 40 && !ours.starts_with("0000")).then_some(())
            });
        };
        for (master, replica, from) in [(over, linux, 0), (linux, over, VALUES)] {
            // First a full copy, by a forked child, then the values written meanwhile and later.
            assert_eq!(lines(master, "REPLICAOF NO ONE\n"), "OK\n");
            say(master, &values(from));
            follow(replica, master);
            say(master, &values(from + VALUES));
            are_equal();
            assert_eq!(lines(master, "WAIT 1 60000\n"), "1\n");
        }
        assert_eq!(lines(linux, "DBSIZE\n"), format!("{}\n", 3 * VALUES));
        up.awaits("ActiveOpens", 1);
    });
}
