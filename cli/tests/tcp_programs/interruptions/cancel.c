// cancel ADDRESS PORT: threads are cancelled in each call that waits.
#include "common.h"

static _Atomic pid_t waiter;
static _Atomic int cleaned, is_disabled_over;
static int type, pipes[2];

static void clean(void *all) { cleaned++; (void)all; }
static void in_accept(void) { accept(listener, 0, 0); }
static void in_recv(void) { char byte; recv(peer, &byte, 1, 0); }
static void in_read(void) { char byte; read(peer, &byte, 1); }
static void in_recvmsg(void) {
	char byte[2];
	struct iovec parts[2] = { { byte, 1 }, { byte + 1, 1 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	recvmsg(peer, &message, 0);
}
static void in_poll(void) { struct pollfd entry = { peer, POLLIN, 0 }; poll(&entry, 1, -1); }
static void in_ppoll(void) {
	sigset_t none;
	struct pollfd entry = { peer, POLLIN, 0 };
	sigemptyset(&none);
	ppoll(&entry, 1, 0, &none);
}
static void in_select(void) { fd_set set; FD_ZERO(&set); FD_SET(peer, &set); select(peer + 1, &set, 0, 0, 0); }
static void in_epoll_wait(void) {
	struct epoll_event event = { .events = EPOLLIN };
	int set = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(set, EPOLL_CTL_ADD, peer, &event);
	epoll_wait(set, &event, 1, -1);
}
static void in_connect(void) {
	// A host that does not exist.
	struct sockaddr_in to;
	socklen_t length = sizeof to;
	getsockname(listener, (struct sockaddr *)&to, &length);
	to.sin_addr.s_addr = htonl((ntohl(to.sin_addr.s_addr) & ~0xff) | 99);
	connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof to);
}
static void in_kernels_read(void) { char byte; read(pipes[0], &byte, 1); }
static void in_kernels_poll(void) { struct pollfd entry = { pipes[0], POLLIN, 0 }; poll(&entry, 1, -1); }

static void *run(void *call) {
	pthread_setcanceltype(type, 0);
	pthread_cleanup_push(clean, 0);
	waiter = gettid();
	((void (*)(void))call)();
	pthread_cleanup_pop(0);
	return 0;
}

// Not cancelled while it disallows that, but then at once.
static void *disabled(void *all) {
	char word[4];
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, 0);
	waiter = gettid();
	is_disabled_over = recv(peer, word, 4, MSG_WAITALL) == 4;
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, 0);
	recv(peer, word, 4, 0);
	return all;
}

static int is_cancelled(void *(*thread)(void *), void *call, int echo) {
	pthread_t one;
	void *result = 0;
	waiter = 0;
	pthread_create(&one, 0, thread, call);
	while (!waiter)
		sched_yield();
	await_sleep(waiter);
	pthread_cancel(one);
	if (echo)
		check(write(peer, "word", 4) == 4, "write");
	pthread_join(one, &result);
	return result == PTHREAD_CANCELED;
}

int main(int count, char **arguments) {
	struct { const char *name; void (*call)(void); } calls[] = {
		{ "recv", in_recv }, { "read", in_read }, { "recvmsg", in_recvmsg }, { "poll", in_poll },
		{ "ppoll", in_ppoll },
		{ "select", in_select }, { "epoll_wait", in_epoll_wait }, { "accept", in_accept },
		{ "connect", in_connect }, { "read of a pipe", in_kernels_read }, { "poll of a pipe", in_kernels_poll },
	};
	(void)count;
	serve(arguments);
	check(accept(listener, 0, 0) >= 0, "accept");
	check(!pipe(pipes), "pipe");
	for (unsigned one = 0; one < sizeof calls / sizeof *calls; one++) {
		for (int turn = 0; turn < 40; turn++) {
			type = turn % 4 == 0 ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED;
			check(is_cancelled(run, calls[one].call, 0), calls[one].name);
		}
		printf("%s: cancelled, cleaned %d, whole %d\n", calls[one].name, cleaned, echoes(peer));
		cleaned = 0;
	}
	int was = is_cancelled(disabled, 0, 1);
	printf("disabled: cancelled %d, received before %d, whole %d\n", was, is_disabled_over, echoes(peer));
	return 0;
}
