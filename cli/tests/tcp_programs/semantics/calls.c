/* calls ADDRESS NOBODY: prints the results of calls on a connection that it accepts at ADDRESS, port 7000, and on
 * one to NOBODY, a host that does not answer. "send N" asks the peer for N bytes, and "end" for the end of its
 * stream. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static char bytes[200000];

static void tell(const char *what, long answer) {
	if (answer < 0) printf("%s: %s\n", what, strerrorname_np(errno));
	else printf("%s: %ld\n", what, answer);
	fflush(stdout);
}

static int available(int fd) { int count = 0; ioctl(fd, FIONREAD, &count); return count; }

/* Asks for bytes and waits for them. */
static void get(int fd, int count) {
	int wanted = available(fd) + count;
	printf("send %d\n", count);
	fflush(stdout);
	while (available(fd) < wanted) usleep(1000);
}

static int error(int fd) {
	int number = 0;
	socklen_t length = sizeof number;
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &length);
	return number;
}

static int events(int fd, int timeout) {
	struct pollfd entry = { fd, POLLIN | POLLOUT | POLLRDHUP, 0 };
	poll(&entry, 1, timeout);
	return entry.revents;
}

static void discards(int fd) {
	get(fd, 3000);
	tell("discard 1000", recv(fd, NULL, 1000, MSG_TRUNC));
	tell("count without discarding", recv(fd, NULL, 500, MSG_TRUNC | MSG_PEEK));
	struct iovec parts[2] = { { NULL, 700 }, { NULL, 300 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2, .msg_namelen = 7 };
	tell("discard a vector", recvmsg(fd, &message, MSG_TRUNC));
	tell("length of no name", message.msg_namelen);
	tell("discard the rest", recv(fd, NULL, 5000, MSG_TRUNC));
	tell("discard nothing", recv(fd, NULL, 10, MSG_TRUNC | MSG_DONTWAIT));
	get(fd, 10);
	tell("receive to nowhere", recv(fd, NULL, 10, 0));
	tell("write from nowhere", send(fd, NULL, 10, 0));
	tell("receive", recv(fd, bytes, 10, MSG_WAITALL));
}

static void low_water(int fd) {
	int low = 1000, set = epoll_create1(0);
	socklen_t length = sizeof low;
	struct epoll_event event = { EPOLLIN | EPOLLET, { 0 } };
	tell("SO_RCVLOWAT", setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
	low = 0;
	getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, &length);
	tell("it is", low);
	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	get(fd, 400);
	tell("poll below the mark", events(fd, 0));
	tell("epoll below the mark", epoll_wait(set, &event, 1, 0));
	tell("receive without waiting", recv(fd, bytes, 4096, MSG_PEEK | MSG_DONTWAIT));
	get(fd, 700);
	tell("poll above the mark", events(fd, -1));
	tell("epoll above the mark", epoll_wait(set, &event, 1, -1));
	tell("receive all", recv(fd, bytes, 4096, 0));
	get(fd, 400);
	/* Linux waits for as many bytes again. */
	printf("send 1000\n");
	fflush(stdout);
	tell("wait for the mark", recv(fd, bytes, 4096, 0));
	get(fd, 400);
	tell("receive few", recv(fd, bytes, 100, 0));
	tell("poll below the mark", events(fd, 0));
	low = 0;
	tell("SO_RCVLOWAT of 0", setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
	tell("poll with any bytes", events(fd, -1));
	tell("epoll with any bytes", epoll_wait(set, &event, 1, -1));
	tell("receive the rest", recv(fd, bytes, 4096, 0));
	close(set);
}

static void signals(int fd) {
	sigset_t all;
	siginfo_t about;
	sigemptyset(&all);
	sigaddset(&all, SIGRTMIN + 1);
	sigaddset(&all, SIGIO);
	sigprocmask(SIG_BLOCK, &all, NULL);
	fcntl(fd, F_SETOWN, getpid());
	fcntl(fd, F_SETSIG, SIGRTMIN + 1);
	tell("O_ASYNC", fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC));
	tell("it is set", !!(fcntl(fd, F_GETFL) & O_ASYNC));
	printf("send 10\n");
	fflush(stdout);
	tell("the signal", sigwaitinfo(&all, &about) == SIGRTMIN + 1);
	tell("of this descriptor", about.si_fd == fd);
	tell("code", about.si_code);
	tell("band", about.si_band);
	tell("receive", recv(fd, bytes, 10, MSG_WAITALL));
	fcntl(fd, F_SETSIG, 0);
	printf("send 10\n");
	fflush(stdout);
	tell("SIGIO", sigwaitinfo(&all, &about) == SIGIO);
	tell("code", about.si_code);
	tell("receive", recv(fd, bytes, 10, MSG_WAITALL));
	int off = 0;
	tell("FIOASYNC", ioctl(fd, FIOASYNC, &off));
	tell("it is set", !!(fcntl(fd, F_GETFL) & O_ASYNC));
	get(fd, 10);
	struct timespec none = { 0, 0 };
	tell("no signal", sigtimedwait(&all, &about, &none));
	tell("receive", recv(fd, bytes, 10, MSG_WAITALL));
}

static void messages(int fd) {
	struct iovec parts[3] = { { bytes, 5 }, { bytes + 5, 5 }, { bytes + 10, 5 } };
	struct mmsghdr all[3] = { 0 };
	for (int at = 0; at < 3; at++) all[at].msg_hdr = (struct msghdr){ .msg_iov = parts + at, .msg_iovlen = 1 };
	get(fd, 10);
	printf("send 5\n");
	fflush(stdout);
	tell("recvmmsg waits for each", recvmmsg(fd, all, 3, MSG_WAITALL, NULL));
	get(fd, 10);
	tell("recvmmsg waits for one", recvmmsg(fd, all, 3, MSG_WAITFORONE, NULL));
}

static void connecting(const char *nobody) {
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(9) }, own = { 0 };
	socklen_t length = sizeof own;
	inet_pton(AF_INET, nobody, &at.sin_addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	tell("connect", connect(fd, (void *)&at, sizeof at));
	tell("getsockname", getsockname(fd, (void *)&own, &length));
	tell("has a port", own.sin_port != 0);
	tell("has an address", own.sin_addr.s_addr != 0);
	tell("poll", events(fd, 0));
	tell("shutdown", shutdown(fd, SHUT_WR));
	tell("poll", events(fd, 0));
	tell("SO_ERROR", error(fd));
	tell("shutdown again", shutdown(fd, SHUT_WR));
	close(fd);
}

int main(int count, char **words) {
	if (count < 3) return 2;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7000) };
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	inet_pton(AF_INET, words[1], &at.sin_addr);
	int own = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	setsockopt(own, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(own, (void *)&at, sizeof at) || listen(own, 8)) { perror("listen"); return 2; }
	printf("listening\n");
	fflush(stdout);
	int fd = accept(own, NULL, NULL);
	discards(fd);
	low_water(fd);
	signals(fd);
	messages(fd);
	connecting(words[2]);
	printf("end\n");
	fflush(stdout);
	tell("receive to nowhere at the end", recv(fd, NULL, 10, 0));
	tell("discard at the end", recv(fd, NULL, 10, MSG_TRUNC));
	tell("disconnect", connect(fd, &none, sizeof none));
	tell("SO_ERROR", error(fd));
	tell("receive", recv(fd, bytes, 10, 0));
	tell("disconnect a listener", connect(own, &none, sizeof none));
	tell("accept", accept(own, NULL, NULL));
	return 0;
}
