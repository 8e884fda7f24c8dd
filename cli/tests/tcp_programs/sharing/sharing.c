/* sharing play|peer FOLDER ADDRESS [PEER]: plays a program of operations on sockets that several processes share.
 *
 * FOLDER/script has a step per line: an actor, an operation, and up to five numbers. The actor that has the token plays
 * the next step, appends what it saw to FOLDER/out, and gives the token to the actor of the step after it. So each
 * process acts alone, except for steps that begin with `a`: their actor gives the token away first, and says what it
 * saw at its next step.
 *
 * Actors 0 to 3 are processes that share sockets, actor 4 is the peer, 5 the parent of actor 0, and 6 the test. After a
 * kill, step -1 has the peer read what is left. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PEER = 4, PARENT = 5, TEST = 6, VARIABLES = 8, STEPS_MAX = 20000, BYTES_MAX = 1 << 20 };
/* Descriptors that all actors have: tokens, the output, numbers that steps tell one another, pairs for SCM_RIGHTS. */
enum { TOKEN = 100, OUT = 110, NOTES = 111, PAIR = 120 };

static struct step { int actor; char op[12]; long word[5]; } steps[STEPS_MAX];
/* The stream that arrives at each of the peer's variables, and the position up to which it was read. */
static struct incoming { long stream, at; } incoming[VARIABLES];
static int count, slot, epoll_set = -1, variable[VARIABLES], in_set[VARIABLES];
static const char *folder, *address, *peer_address, *self;
static char bytes[BYTES_MAX], saw[400];

static void say(const char *format, ...) {
	size_t used = strlen(saw);
	va_list words;
	va_start(words, format);
	vsnprintf(saw + used, sizeof saw - used, format, words);
	va_end(words);
}

static void flush(int at) {
	char line[500];
	int length = snprintf(line, sizeof line, "%d %d %s:%s\n", at, slot, steps[at].op, saw);
	if (write(OUT, line, length) != length) _exit(9);
	saw[0] = 0;
}

static void give(int at) {
	int next = at + 1 < count ? steps[at + 1].actor : TEST;
	at++;
	if (write(TOKEN + next, &at, sizeof at) != sizeof at) _exit(9);
}

/* The byte of a stream: `stream` is a number of its own for each direction of each connection. */
static char byte_of(long stream, long at) {
	return 'A' + (at * 7 + (at >> 7) * 11 + (at >> 13) + stream * 13) % 26;
}

static void fill(char *to, long stream, long at, long n) {
	for (long i = 0; i < n; i++) to[i] = byte_of(stream, at + i);
}

static void check(const char *got, long stream, long at, long n) {
	for (long i = 0; i < n; i++)
		if (got[i] != byte_of(stream, at + i)) {
			say(" WRONG at %ld: %02x %02x", at + i, got[i], got[i + (i + 1 < n)]);
			return;
		}
}

static void result(long n) {
	if (n < 0) say(" %s", strerrorname_np(errno));
	else say(" %ld", n);
}

static void await(int fd, int events) {
	struct pollfd one = {.fd = fd, .events = events};
	poll(&one, 1, -1);
}

static ssize_t get_some(int fd, char *to, size_t n, int kind) {
	struct iovec parts[2] = {{to, n / 2}, {to + n / 2, n - n / 2}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	switch (kind % 5) {
	case 0: return read(fd, to, n);
	case 1: return recv(fd, to, n, 0);
	case 2: return readv(fd, parts, 2);
	case 3: return recvmsg(fd, &message, 0);
	default: return recv(fd, to, n, MSG_WAITALL);
	}
}

static ssize_t put_some(int fd, char *from, size_t n, int kind) {
	struct iovec parts[2] = {{from, n / 2}, {from + n / 2, n - n / 2}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	switch (kind % 4) {
	case 0: return write(fd, from, n);
	case 1: return send(fd, from, n, MSG_NOSIGNAL);
	case 2: return writev(fd, parts, 2);
	default: return sendmsg(fd, &message, MSG_NOSIGNAL);
	}
}

/* Reads until there are so many bytes, or the end. What it saw: the count, and an end or an error. `-1`: all until the
 * end. Returns the number of bytes. */
static long get(int fd, long stream, long at, long n, int kind, int is_count_said) {
	long done = 0;
	ssize_t got = 1;
	while (n < 0 || done < n) {
		long room = n < 0 || n - done > BYTES_MAX ? BYTES_MAX : n - done;
		got = get_some(fd, bytes, room, n < 0 ? 0 : kind);
		if (got < 0 && errno == EAGAIN) { await(fd, POLLIN); continue; }
		if (got <= 0) break;
		check(bytes, stream, at + done, got);
		done += got;
	}
	if (is_count_said) say(" %ld", done);
	if (got <= 0) say(got ? " %s" : " end", strerrorname_np(errno));
	return done;
}

static void put(int fd, long stream, long at, long n, int kind) {
	long done = 0;
	fill(bytes, stream, at, n);
	while (done < n) {
		ssize_t put = put_some(fd, bytes + done, n - done, kind);
		if (put < 0 && errno == EAGAIN) { await(fd, POLLOUT); continue; }
		if (put <= 0) { result(put); break; }
		done += put;
	}
	say(" %ld", done);
}

static struct sockaddr_in name_of(const char *ip, int port) {
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
	inet_pton(AF_INET, ip, &name.sin_addr);
	return name;
}

static int port_of(int fd) {
	struct sockaddr_in name = {0};
	socklen_t length = sizeof name;
	getsockname(fd, (void *)&name, &length);
	return ntohs(name.sin_port);
}

/* Numbers that one step tells another: ports at 0 and 1, and the actors' process ids from 8 on. */
static void note(int at, int number) {
	if (pwrite(NOTES, &number, sizeof number, at * sizeof number) < 0) _exit(9);
}

static int noted(int at) {
	int number = 0;
	if (pread(NOTES, &number, sizeof number, at * sizeof number) < 0) _exit(9);
	return number;
}

static int dial(const char *ip, int port) {
	struct sockaddr_in name = name_of(ip, port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	int outcome = connect(fd, (void *)&name, sizeof name);
	result(outcome);
	if (!outcome) return fd;
	close(fd);
	return -1;
}

static int listen_at(const char *ip, int note_at) {
	struct sockaddr_in name = name_of(ip, 0);
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	result(bind(fd, (void *)&name, sizeof name));
	result(listen(fd, 16));
	note(note_at, port_of(fd));
	return fd;
}

/* Accepts, unless the test lets the peer leave: the process that was to connect has been killed. */
static int take_in(int listener) {
	struct pollfd either[] = {{.fd = listener, .events = POLLIN}, {.fd = TOKEN + PEER, .events = POLLIN}};
	if (slot == PEER) poll(either, 2, -1);
	int fd = slot == PEER && !either[0].revents ? -1 : accept(listener, 0, 0);
	say(fd < 0 ? " failed" : " 0");
	return fd;
}

static void pass(int fd, int to) {
	char byte = 1, room[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(head), &fd, sizeof fd);
	result(sendmsg(PAIR + 2 * to, &message, 0));
}

static int take(void) {
	int fd = -1;
	char byte, room[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	result(recvmsg(PAIR + 2 * slot + 1, &message, 0));
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	if (head) memcpy(&fd, CMSG_DATA(head), sizeof fd);
	return fd;
}

static void close_variable(int at) {
	if (in_set[at]) epoll_ctl(epoll_set, EPOLL_CTL_DEL, variable[at], 0);
	in_set[at] = 0;
	result(close(variable[at]));
	/* Descriptors 0 to 2 stay in use. */
	if (variable[at] <= 2 && open("/dev/null", O_RDWR) < 0) say(" no null");
	variable[at] = -1;
}

/* Sleeps until one of the events comes, then looks until all have come. What it saw is all events, also others. */
static void await_events(int fd, int wanted) {
	struct pollfd one = {.fd = fd, .events = POLLIN | POLLRDHUP};
	if (wanted & POLLOUT) one.events |= POLLOUT;
	/* While a reset arrives, Linux shows POLLHUP a moment before POLLRDHUP. */
	int is_reset = POLLERR | POLLHUP, looks = 0;
	for (int first = 1; first || (one.revents & wanted) != wanted ||
			    ((one.revents & (is_reset | POLLRDHUP)) == is_reset && looks++ < 50);
	     first = 0) {
		if (!first) usleep(200);
		result(poll(&one, 1, wanted ? -1 : 0));
		saw[0] = 0;
	}
	say(" %x", one.revents);
}

static void await_in_set(int at, int wanted) {
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = at}, found[VARIABLES];
	if (epoll_set < 0) {
		epoll_set = epoll_create1(EPOLL_CLOEXEC);
		epoll_set = fcntl(epoll_set, F_DUPFD_CLOEXEC, 60);
	}
	if (!in_set[at]) result(epoll_ctl(epoll_set, EPOLL_CTL_ADD, variable[at], &event));
	in_set[at] = 1;
	for (;;) {
		int events = 0, n = epoll_wait(epoll_set, found, VARIABLES, wanted ? -1 : 0);
		for (int i = 0; i < n; i++) if ((int)found[i].data.u64 == at) events = found[i].events;
		if ((events & wanted) == wanted) { say(" %x", events); return; }
		usleep(200);
	}
}

static void splice_in(int fd, long stream, long at, long n) {
	int ends[2];
	long done = 0;
	if (pipe(ends)) _exit(9);
	while (done < n) {
		ssize_t moved = splice(fd, 0, ends[1], 0, n - done, 0);
		if (moved < 0 && errno == EAGAIN) { await(fd, POLLIN); continue; }
		if (moved <= 0) { result(moved); break; }
		if (read(ends[0], bytes, moved) != moved) say(" pipe");
		check(bytes, stream, at + done, moved);
		done += moved;
	}
	say(" %ld", done);
	close(ends[0]);
	close(ends[1]);
}

static void splice_out(int fd, long stream, long at, long n) {
	int ends[2];
	long done = 0;
	if (pipe(ends)) _exit(9);
	fill(bytes, stream, at, n);
	if (write(ends[1], bytes, n) != n) say(" pipe");
	while (done < n) {
		ssize_t moved = splice(ends[0], 0, fd, 0, n - done, 0);
		if (moved < 0 && errno == EAGAIN) { await(fd, POLLOUT); continue; }
		if (moved <= 0) { result(moved); break; }
		done += moved;
	}
	say(" %ld", done);
	close(ends[0]);
	close(ends[1]);
}

static void by_stdio(int fd, int writes, long stream, long at, long n) {
	FILE *file = fdopen(dup(fd), writes ? "w" : "r");
	if (!file) { result(-1); return; }
	if (writes) fill(bytes, stream, at, n);
	say(" %zu", writes ? fwrite(bytes, 1, n, file) : fread(bytes, 1, n, file));
	if (!writes) check(bytes, stream, at, n);
	result(fclose(file));
}

/* The same by a child that a shell starts. `is_static`: one without the library. popen(3) replaces its standard
 * streams. */
static void by_shell(int from, int is_popen, int writes, int is_static, long stream, long at, long n) {
	char command[600];
	int fd = is_popen && from <= 2 ? dup(from) : from;
	const char *name = is_static ? "static" : "dynamic", *what = writes ? "put" : "get";
	snprintf(command, sizeof command, "%s/%s %s %d %ld %ld %ld", folder, name, what, fd, stream, at, n);
	if (!is_popen) { say(" %x", system(command)); return; }
	FILE *shell = popen(command, writes ? "w" : "r");
	if (!shell) { result(-1); return; }
	say(" %x", pclose(shell));
	if (fd != from) close(fd);
}

static void confine(void) {
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog filter = {1, &allow};
	result(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	result(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
}

extern char **environ;

/* Becomes another program, or the same again: with the library, statically linked, or without it in the environment. */
static void become(int at, int kind) {
	char path[300], words[VARIABLES + 3][24];
	char *arguments[VARIABLES + 8] = {(char *)self, "go", (char *)folder, (char *)address, (char *)peer_address};
	int used = 5;
	snprintf(path, sizeof path, "%s/%s", folder, kind == 1 ? "static" : "dynamic");
	snprintf(words[0], sizeof words[0], "%d", slot);
	snprintf(words[1], sizeof words[1], "%d", at);
	for (int i = 0; i < VARIABLES; i++) snprintf(words[i + 2], sizeof words[0], "%d", variable[i]);
	for (int i = 0; i < VARIABLES + 2; i++) arguments[used++] = words[i];
	if (kind == 2) unsetenv("LD_PRELOAD");
	execve(path, arguments, environ);
	result(-1);
}

static void kill_actor(int which) {
	int pid = noted(8 + which), fd = syscall(SYS_pidfd_open, pid, 0);
	result(kill(pid, SIGKILL));
	await(fd, POLLIN);
	close(fd);
}

static void actor(int from);

static void begin(int as) {
	fflush(0);
	pid_t child = fork();
	if (child) {
		result(child < 0 ? -1 : 0);
		note(8 + as, child);
		return;
	}
	slot = as;
	saw[0] = 0;
	if (epoll_set >= 0) close(epoll_set);
	epoll_set = -1;
	memset(in_set, 0, sizeof in_set);
	actor(-1);
}

static void play(int at) {
	struct step *step = &steps[at];
	long *w = step->word;
	const char *op = step->op[0] == 'a' ? step->op + 1 : step->op;
	int *fd = w[0] >= 0 && w[0] < VARIABLES ? &variable[w[0]] : 0;
#define IS(name) (!strcmp(op, name))
	if (IS("begin") || IS("fork")) begin(w[0]);
	else if (IS("end")) { while (wait(0) > 0 || errno == EINTR) continue; }
	else if (IS("exit")) { flush(at); give(at); if (w[0]) exit(0); _exit(0); }
	else if (IS("kill")) kill_actor(w[0]);
	else if (IS("exec")) { flush(at); become(at, w[0]); }
	else if (IS("filter")) confine();
	else if (IS("join")) return;
	else if (IS("dial")) *fd = dial(peer_address, noted(slot == PEER));
	else if (IS("listen")) *fd = listen_at(address, slot != PEER);
	else if (IS("take_in")) *fd = take_in(variable[w[1]]);
	else if (IS("dup")) { variable[w[1]] = dup(*fd); say(variable[w[1]] < 0 ? " failed" : " 0"); }
	else if (IS("dup2")) {
		if (in_set[w[1]]) epoll_ctl(epoll_set, EPOLL_CTL_DEL, variable[w[1]], 0);
		in_set[w[1]] = 0;
		say(dup2(*fd, variable[w[1]]) < 0 ? " failed" : " 0");
	}
	else if (IS("standard")) { say(" %d", variable[w[1]] = dup2(*fd, w[2])); }
	else if (IS("pass")) pass(*fd, w[1]);
	else if (IS("receive")) *fd = take();
	else if (IS("close")) close_variable(w[0]);
	else if (IS("read")) incoming[w[0]].at += get(*fd, w[1], w[2], w[3], w[4], 1);
	else if (IS("write")) put(*fd, w[1], w[2], w[3], w[4]);
	else if (IS("drain")) get(*fd, w[1], w[2], -1, 0, w[3]);
	else if (IS("discard")) {
		get(*fd, w[1], w[2], -1, 0, 0);
		if (!strstr(saw, "WRONG")) saw[0] = 0;
	}
	else if (IS("peek")) { result(recv(*fd, bytes, w[3], MSG_PEEK | MSG_WAITALL)); check(bytes, w[1], w[2], w[3]); }
	else if (IS("try")) result(recv(*fd, bytes, 100, MSG_DONTWAIT));
	else if (IS("shut")) result(shutdown(*fd, w[1]));
	else if (IS("poll")) await_events(*fd, w[1]);
	else if (IS("epoll")) await_in_set(w[0], w[1]);
	else if (IS("block")) result(fcntl(*fd, F_SETFL, w[1] ? O_NONBLOCK : 0));
	else if (IS("error")) {
		socklen_t length = sizeof errno;
		int error = 0;
		result(getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &length));
		say(" %s", strerrorname_np(error));
	}
	else if (IS("flags")) say(" %d", (fcntl(*fd, F_GETFL) & O_NONBLOCK) != 0);
	else if (IS("stdio")) by_stdio(*fd, w[4], w[1], w[2], w[3]);
	else if (IS("dprintf")) { fill(bytes, w[1], w[2], w[3]); say(" %d", dprintf(*fd, "%.*s", (int)w[3], bytes)); }
	else if (IS("splice")) (w[4] ? splice_out : splice_in)(*fd, w[1], w[2], w[3]);
	else if (IS("system")) by_shell(*fd, 0, w[4] & 1, w[4] >> 1, w[1], w[2], w[3]);
	else if (IS("popen")) by_shell(*fd, 1, w[4] & 1, w[4] >> 1, w[1], w[2], w[3]);
	else if (IS("reset")) {
		struct linger at_once = {1, 0};
		setsockopt(*fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
		close_variable(w[0]);
	}
	else say(" unknown");
	if (slot == PEER && (IS("dial") || IS("take_in"))) incoming[w[0]] = (struct incoming){w[2], 0};
}

/* Reads what is left of each of the peer's connections, after all other processes have been killed. What it saw: for
 * each the stream, how much it had got before, how much was left, and an end or an error. */
static void leave(void) {
	struct pollfd waiting = {.fd = variable[VARIABLES - 1], .events = POLLIN};
	for (int i = 0; i < VARIABLES - 2; i++) {
		if (variable[i] < 0) continue;
		say(" %ld %ld", incoming[i].stream, incoming[i].at);
		get(variable[i], incoming[i].stream, incoming[i].at, -1, 0, 1);
		say(";");
	}
	/* Those of killed processes that had not used them. */
	while (poll(&waiting, 1, 0) > 0) {
		int fd = accept(waiting.fd, 0, 0);
		say(" -1 0");
		get(fd, -1, 0, -1, 0, 1);
		say(";");
		close(fd);
	}
	char line[500];
	int length = snprintf(line, sizeof line, "-1 %d leave:%s\n", slot, saw), at = -1;
	if (write(OUT, line, length) != length || write(TOKEN + TEST, &at, sizeof at) != sizeof at) _exit(9);
}

/* Plays steps for ever. `from`: the step that this program has yet to end. */
static void actor(int from) {
	int pending = -1;
	if (from >= 0) give(from);
	for (;;) {
		int at;
		ssize_t got = read(TOKEN + slot, &at, sizeof at);
		if (got < 0 && errno == EINTR) continue;
		if (got != sizeof at) _exit(8);
		if (at < 0) { leave(); continue; }
		if (pending >= 0) flush(pending);
		pending = -1;
		if (steps[at].actor != slot) _exit(7);
		if (steps[at].op[0] == 'a') {
			pending = at;
			give(at);
			play(at);
		} else {
			play(at);
			flush(at);
			give(at);
		}
	}
}

static void load(void) {
	char path[300], line[200];
	snprintf(path, sizeof path, "%s/script", folder);
	FILE *script = fopen(path, "r");
	if (!script) _exit(6);
	while (count < STEPS_MAX && fgets(line, sizeof line, script)) {
		struct step *step = &steps[count++];
		long *w = step->word;
		sscanf(line, "%d %11s %ld %ld %ld %ld %ld", &step->actor, step->op, w, w + 1, w + 2, w + 3, w + 4);
	}
	fclose(script);
}

static void place(int fd, int number) {
	if (fd < 0 || dup2(fd, number) < 0) _exit(5);
	close(fd);
}

static void open_all(void) {
	char path[300];
	for (int i = 0; i <= TEST; i++) {
		snprintf(path, sizeof path, "%s/token%d", folder, i);
		place(open(path, O_RDWR), TOKEN + i);
	}
	snprintf(path, sizeof path, "%s/out", folder);
	place(open(path, O_WRONLY | O_APPEND), OUT);
	snprintf(path, sizeof path, "%s/notes", folder);
	place(open(path, O_RDWR), NOTES);
	for (int i = 0; i < PEER && slot == PARENT; i++) {
		int ends[2];
		if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) _exit(5);
		place(ends[0], PAIR + 2 * i);
		place(ends[1], PAIR + 2 * i + 1);
	}
}

int main(int argc, char **argv) {
	if (argc < 4) return 4;
	self = argv[0];
	if (!strcmp(argv[1], "put") || !strcmp(argv[1], "get")) {
		int fd = atoi(argv[2]);
		long stream = atol(argv[3]), at = atol(argv[4]), n = atol(argv[5]);
		if (!strcmp(argv[1], "put")) put(fd, stream, at, n, 0);
		else get(fd, stream, at, n, 0, 1);
		char whole[40];
		snprintf(whole, sizeof whole, " %ld", n);
		return strcmp(saw, whole) ? 3 : 0;
	}
	signal(SIGPIPE, SIG_IGN);
	folder = argv[2];
	address = argv[3];
	peer_address = argv[4];
	memset(variable, -1, sizeof variable);
	load();
	if (!strcmp(argv[1], "go")) {
		slot = atoi(argv[5]);
		for (int i = 0; i < VARIABLES; i++) variable[i] = atoi(argv[7 + i]);
		actor(atoi(argv[6]));
	}
	slot = !strcmp(argv[1], "peer") ? PEER : PARENT;
	open_all();
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	actor(-1);
}
