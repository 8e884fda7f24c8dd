// throw ADDRESS PORT: a handler leaves a call by an exception.
#include "common.h"

static void on_signal(int signal) { throw signal; }

int main(int count, char **arguments) {
	(void)count;
	serve(arguments);
	struct sigaction action = {};
	action.sa_handler = on_signal;
	action.sa_flags = SA_NODEFER;
	sigaction(SIGALRM, &action, 0);
	for (int turn = 0; turn < 20; turn++) {
		struct itimerval soon = { {}, { 0, 1000 + turn * 300 } };
		char byte;
		int caught = 0;
		setitimer(ITIMER_REAL, &soon, 0);
		try {
			recv(peer, &byte, 1, 0);
		} catch (int signal) {
			caught = signal;
		}
		check(caught == SIGALRM && echoes(peer), "catch");
	}
	printf("closed %d\n", close(peer));
	return 0;
}
