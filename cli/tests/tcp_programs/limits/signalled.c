/* signalled ADDRESS PORT: accepts a connection, and then waits in recv(2), poll(2) and accept(2), each until a
 * signal handler has run. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static volatile sig_atomic_t handled;

static void handle(int signal) {
	(void)signal;
	handled = 1;
}

static int say(const char *what) {
	puts(what);
	fflush(stdout);
	handled = 0;
	return 0;
}

int main(int count, char **words) {
	if (count < 3) return 2;
	struct sigaction action = { .sa_handler = handle };
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(words[2])) };
	inet_pton(AF_INET, words[1], &at.sin_addr);
	int own = socket(AF_INET, SOCK_STREAM, 0), connection = -1;
	if (bind(own, (void *)&at, sizeof at) || listen(own, 8)) { perror("listen"); return 2; }
	while (connection < 0) connection = accept(own, NULL, NULL);
	say("accepted");
	char byte;
	struct pollfd entry = { .fd = connection, .events = POLLIN };
	while (!handled) if (recv(connection, &byte, 1, 0) >= 0 || errno != EINTR) return 3;
	say("recv");
	while (!handled) if (poll(&entry, 1, -1) >= 0 || errno != EINTR) return 4;
	say("poll");
	while (!handled) if (accept(own, NULL, NULL) >= 0 || errno != EINTR) return 5;
	return say("accept");
}
