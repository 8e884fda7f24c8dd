//! Programs that confine themselves with seccomp(2), which kills them at a system call that they did not expect.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use wave_skip::skip;

use crate::network::{AGENT, Running, Up, connect, in_a_network};

/// Accepts a connection, confines itself as sshd's process before authentication does, and echoes. Arguments: address, port, the call by
/// which it waits, RLIMIT_NOFILE.
const SANDBOXED: &str = r#"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>
#define ALLOW(n) BPF_JUMP(BPF_JMP+BPF_JEQ+BPF_K, SYS_##n, 0, 1), BPF_STMT(BPF_RET+BPF_K, SECCOMP_RET_ALLOW)
static struct sock_filter filter[] = {
  BPF_STMT(BPF_LD+BPF_W+BPF_ABS, offsetof(struct seccomp_data, nr)),
  ALLOW(brk), ALLOW(clock_gettime), ALLOW(clock_nanosleep), ALLOW(close), ALLOW(exit), ALLOW(exit_group), ALLOW(futex),
  ALLOW(geteuid), ALLOW(getpid), ALLOW(getpgid), ALLOW(getrandom), ALLOW(gettimeofday), ALLOW(getuid), ALLOW(madvise),
  ALLOW(mmap), ALLOW(mprotect), ALLOW(mremap), ALLOW(munmap), ALLOW(nanosleep), ALLOW(pselect6), ALLOW(read),
  ALLOW(rt_sigprocmask), ALLOW(shutdown), ALLOW(write),
#ifdef SYS_poll
  ALLOW(poll), ALLOW(select),
#else
  ALLOW(ppoll),
#endif
  BPF_STMT(BPF_RET+BPF_K, SECCOMP_RET_KILL_PROCESS),
};
int main(int argc, char **argv) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
  struct rlimit none = {0, 0}, files = {atoi(argv[4]), atoi(argv[4])};
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  inet_pton(AF_INET, argv[1], &a.sin_addr);
  int one = 1, s = socket(AF_INET, SOCK_STREAM, 0), c;
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(s, (void *)&a, sizeof a) || listen(s, 5) || (c = accept(s, 0, 0)) < 0) return 2;
  if (setrlimit(RLIMIT_FSIZE, &none) || setrlimit(RLIMIT_NOFILE, &files)) return 3;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 4;
  static char b[1 << 16];
  for (;;) {
    if (!strcmp(argv[3], "poll")) {
      struct pollfd p = {c, POLLIN, 0};
      if (poll(&p, 1, -1) != 1 || p.revents != POLLIN) return 5;
    } else if (!strcmp(argv[3], "select")) {
      fd_set r;
      FD_ZERO(&r); FD_SET(c, &r);
      if (select(c + 1, &r, 0, 0, 0) != 1) return 6;
    }
    ssize_t n = read(c, b, sizeof b), k = 0, w;
    if (n < 0) return 7;
    if (n == 0) break;
    for (; k < n; k += w)
      if ((w = write(c, b + k, n - k)) < 0) return 8;
  }
  return close(c) != 0;
}
"#;

#[test]
fn sandboxed_programs_use_their_connections() {
    in_a_network(|| {
        let up = Up::new();
        let source = up.path("sandboxed.c");
        let program: PathBuf = up.path("sandboxed");
        fs::write(&source, SANDBOXED).unwrap();
        match Command::new("cc").arg(&source).arg("-o").arg(&program).output() {
            Ok(built) => assert!(built.status.success(), "{built:?}"),
            Err(_) => return skip("there is no C compiler: apt-get install gcc libc6-dev"),
        }
        let program = program.to_str().unwrap();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at >> 3) as u8).collect();
        // poll(2) fails with more descriptors than RLIMIT_NOFILE, over Linux as well.
        let ways = [("poll", "1"), ("select", "0"), ("read", "0"), ("read", "100")];
        for (port, (call, files)) in (7000..).zip(ways) {
            let words = [program, "10.77.0.2", &port.to_string(), call, files];
            let mut running = Running(up.over(&words).spawn().unwrap());
            let mut stream = connect(SocketAddr::from((AGENT, port)));
            let mut got = vec![0; 5];
            // The program waits in between.
            stream.write_all(b"first").unwrap();
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got, b"first");
            got.clear();
            std::thread::scope(|scope| {
                let mut writes = stream.try_clone().unwrap();
                let sent = &sent;
                scope.spawn(move || {
                    writes.write_all(sent).unwrap();
                    writes.shutdown(Shutdown::Write).unwrap();
                });
                stream.read_to_end(&mut got).unwrap();
            });
            assert!(got == sent, "{call}, {files}: {} bytes", got.len());
            let status = running.0.wait().unwrap();
            assert!(status.success(), "{call}, {files}: {status}");
        }
        // Those with fewer descriptors than the door needs go on as before.
        up.awaits("demoted_by.sandbox", 1);
    });
}
