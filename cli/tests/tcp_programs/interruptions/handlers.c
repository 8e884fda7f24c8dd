// handlers ADDRESS PORT: handlers poll, write and close, whatever they interrupt: calls, waits, malloc(3).
#include "common.h"

#define SIGNALS 3000
static volatile sig_atomic_t wrote, failed, to_close = -1, closed;
static int second;

static void on_signal(int signal) {
	(void)signal;
	int error = errno;
	struct pollfd entry = { second, POLLOUT, 0 };
	char byte = 'h';
	struct iovec part = { &byte, 1 };
	if (poll(&entry, 1, 0) != 1 || writev(second, &part, 1) != 1)
		failed++;
	else
		wrote++;
	if (to_close >= 0) {
		if (close(to_close))
			failed++;
		to_close = -1;
		closed++;
	}
	errno = error;
}

static void *drains(void *all) {
	char bytes[4096];
	ssize_t count;
	intptr_t sum = 0;
	while ((count = recv(second, bytes, sizeof bytes, 0)) > 0)
		sum += count;
	(void)all;
	return (void *)sum;
}

int main(int count, char **arguments) {
	pthread_t drain;
	void *drained = 0;
	sigset_t all;
	long turns = 0, whole = 0;
	(void)count;
	serve(arguments);
	second = accept(listener, 0, 0);
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	sigaction(SIGALRM, &action, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, 0);
	pthread_create(&drain, 0, drains, 0);
	pthread_sigmask(SIG_UNBLOCK, &all, 0);
	struct itimerval often = { { 0, 20 }, { 0, 20 } }, never = { { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &often, 0);
	while (wrote < SIGNALS && !failed) {
		turns++;
		// All the time in calls, and none asleep.
		for (int at = 0; at < 200; at++) {
			char byte;
			if (recv(peer, &byte, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN)
				failed++;
		}
		whole += echoes(peer);
		void *blocks[64];
		for (int at = 0; at < 64; at++)
			blocks[at] = malloc(1 << (at % 12));
		for (int at = 0; at < 64; at++)
			free(blocks[at]);
		if (to_close < 0)
			to_close = dup(peer);
	}
	setitimer(ITIMER_REAL, &never, 0);
	int rest = wrote;
	shutdown(second, SHUT_WR);
	pthread_join(drain, &drained);
	printf("failed %d, all whole %d, some closed %d\n", failed, whole == turns, closed > 0);
	printf("echoed what handlers wrote %d\n", (intptr_t)drained == rest);
	return 0;
}
