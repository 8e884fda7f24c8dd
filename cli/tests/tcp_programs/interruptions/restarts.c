// restarts ADDRESS PORT: which calls a signal ends, and what handlers and their calls see.
#include "common.h"

static volatile sig_atomic_t runs, value, blocked, depth, deepest;
static _Atomic pid_t waiter;
static _Atomic int is_answered;
static pthread_t self;

static void on_signal(int signal, siginfo_t *about, void *context) {
	sigset_t now;
	(void)signal, (void)context;
	depth++;
	deepest = depth > deepest ? depth : deepest;
	pthread_sigmask(SIG_SETMASK, 0, &now);
	blocked = sigismember(&now, SIGUSR1) | sigismember(&now, SIGUSR2) << 1 | sigismember(&now, SIGTERM) << 2;
	value = about->si_code == SI_QUEUE ? about->si_value.sival_int : -1;
	runs++;
	depth--;
}

// Interrupts the main thread's call until it ends, or, if it is made again, some times, and then sends bytes.
static void *interrupts(void *restarts) {
	union sigval seven = { .sival_int = 7 };
	for (int turn = 0; !restarts || turn < 5; turn++) {
		int before = runs;
		await_sleep(waiter);
		if (is_answered)
			return 0;
		check(!pthread_sigqueue(self, SIGUSR1, seven), "sigqueue");
		while (runs == before && !is_answered)
			sched_yield();
	}
	check(write(peer, "echoed", 6) == 6, "write");
	return 0;
}

static void one(const char *name, int flags, int restarts, ssize_t (*call)(void)) {
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = flags | SA_SIGINFO }, seen;
	static pthread_t other;
	char rest[64];
	sigaddset(&action.sa_mask, SIGTERM);
	sigaction(SIGUSR1, &action, 0);
	sigaction(SIGUSR1, 0, &seen);
	runs = is_answered = deepest = 0;
	pthread_create(&other, 0, interrupts, restarts ? &other : 0);
	errno = 0;
	ssize_t answer = call();
	int error = answer < 0 ? errno : 0;
	is_answered = 1;
	pthread_join(other, 0);
	if (!error && answer < 6)
		recv(peer, rest, sizeof "echoed" - 1 - answer, MSG_WAITALL);
	sigaction(SIGUSR1, 0, &action);
	printf("%s: %zd %s, runs %d, value %d, blocked %d, ", name, answer, strerror(error), runs > 0, value, blocked);
	printf("deepest %d, same handler %d, flags %x, after %d\n", deepest, seen.sa_sigaction == on_signal,
	       seen.sa_flags, action.sa_sigaction == on_signal);
}

static ssize_t in_recv(void) { char bytes[6]; return recv(peer, bytes, 6, MSG_WAITALL); }
static ssize_t in_read(void) { char byte; return read(peer, &byte, 1); }
static ssize_t in_poll(void) { struct pollfd entry = { peer, POLLIN, 0 }; return poll(&entry, 1, -1); }
static ssize_t in_select(void) {
	fd_set set;
	FD_ZERO(&set);
	FD_SET(peer, &set);
	return select(peer + 1, &set, 0, 0, 0);
}
static int set;
static ssize_t in_epoll_wait(void) { struct epoll_event event; return epoll_wait(set, &event, 1, -1); }
static ssize_t in_ppoll(void) {
	sigset_t mask;
	struct pollfd entry = { peer, POLLIN, 0 };
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	return ppoll(&entry, 1, 0, &mask);
}

int main(int count, char **arguments) {
	sigset_t mask;
	(void)count;
	self = pthread_self();
	waiter = gettid();
	serve(arguments);
	set = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	epoll_ctl(set, EPOLL_CTL_ADD, peer, &event);
	one("read", 0, 0, in_read);
	one("read, restarting", SA_RESTART, 1, in_read);
	one("recv, restarting", SA_RESTART, 1, in_recv);
	one("recv, nested", SA_RESTART | SA_NODEFER, 1, in_recv);
	one("poll", SA_RESTART, 0, in_poll);
	one("select", SA_RESTART, 0, in_select);
	one("epoll_wait", SA_RESTART, 0, in_epoll_wait);
	struct timeval long_time = { 3600, 0 };
	setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof long_time);
	one("read, with a timeout", SA_RESTART, 0, in_read);
	// A signal that only the wait lets in.
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &mask, 0);
	one("ppoll", SA_RESTART, 0, in_ppoll);
	pthread_sigmask(SIG_UNBLOCK, &mask, 0);
	// The default action follows the first run.
	struct sigaction once = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESETHAND }, after;
	sigaction(SIGUSR2, &once, 0);
	raise(SIGUSR2);
	sigaction(SIGUSR2, 0, &after);
	printf("once %d, then %d\n", (once.sa_sigaction == on_signal), after.sa_handler == SIG_DFL);
	printf("signal %d\n", signal(SIGUSR2, SIG_IGN) == SIG_DFL && signal(SIGUSR2, SIG_DFL) == SIG_IGN);
	printf("whole %d\n", echoes(peer));
	return 0;
}
