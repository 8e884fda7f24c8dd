// jump ADDRESS PORT: time limits by SIGALRM and siglongjmp(3) out of each call that waits.
#include "common.h"

static sigjmp_buf back;
static int second;

static void leave(int signal) { siglongjmp(back, signal); }
static void in_accept(void) { accept(listener, 0, 0); }
static void in_recv(void) { char byte; recv(peer, &byte, 1, 0); }
static void in_readv(void) { char byte; struct iovec part = { &byte, 1 }; readv(peer, &part, 1); }
static volatile int fd = -1;
static void in_connect(void) {
	// A host that does not exist.
	struct sockaddr_in to;
	socklen_t length = sizeof to;
	getsockname(listener, (struct sockaddr *)&to, &length);
	to.sin_addr.s_addr = htonl((ntohl(to.sin_addr.s_addr) & ~0xff) | 99);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	connect(fd, (struct sockaddr *)&to, sizeof to);
}
static void in_poll(void) { struct pollfd entry = { peer, POLLIN, 0 }; poll(&entry, 1, -1); }
static void in_select(void) { fd_set set; FD_ZERO(&set); FD_SET(peer, &set); select(peer + 1, &set, 0, 0, 0); }
static int set;
static void in_epoll_wait(void) { struct epoll_event event; epoll_wait(set, &event, 1, -1); }
static void *reads(void *all) {
	char word[4];
	(void)all;
	return recv(second, word, 4, MSG_WAITALL) == 4 ? &second : 0;
}

int main(int count, char **arguments) {
	struct { const char *name; void (*call)(void); } calls[] = {
		{ "recv", in_recv }, { "readv", in_readv }, { "poll", in_poll }, { "select", in_select },
		{ "epoll_wait", in_epoll_wait }, { "accept", in_accept }, { "connect", in_connect },
	};
	(void)count;
	serve(arguments);
	second = accept(listener, 0, 0);
	set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	epoll_ctl(set, EPOLL_CTL_ADD, peer, &event);
	struct sigaction action = { .sa_handler = leave };
	sigaction(SIGALRM, &action, 0);
	// A thread that waits all the time.
	sigset_t alarm;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, 0);
	pthread_t one;
	void *result = 0;
	pthread_create(&one, 0, reads, 0);
	pthread_sigmask(SIG_UNBLOCK, &alarm, 0);
	for (volatile unsigned at = 0; at < sizeof calls / sizeof *calls; at++) {
		for (volatile int turn = 0; turn < 200; turn++) {
			struct itimerval soon = { .it_value = { 0, 50 + turn * 7 } };
			if (!sigsetjmp(back, 1)) {
				setitimer(ITIMER_REAL, &soon, 0);
				calls[at].call();
				check(0, "the call ended");
			}
			if (fd >= 0)
				check(!close(fd), "close");
			fd = -1;
		}
		printf("%s: whole %d\n", calls[at].name, echoes(peer));
	}
	check(write(second, "word", 4) == 4, "write");
	pthread_join(one, &result);
	printf("the other thread %d\n", result == &second);
	// The last handle: the peer gets a FIN.
	printf("closed %d\n", close(peer));
	char byte;
	printf("peer has seen the end %d\n", recv(second, &byte, 1, 0) == 1 && byte == 'e');
	return 0;
}
