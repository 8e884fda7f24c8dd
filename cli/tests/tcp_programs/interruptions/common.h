// Shared by the programs: a listener, one connection to a peer that echoes, and a look at a thread's state.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

static int listener, peer;

static void check(int is_good, const char *what) {
	if (!is_good) {
		printf("%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

// The arguments are an address and a port. The first connection becomes `peer`.
static void serve(char **arguments) {
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons(atoi(arguments[2])) };
	int on = 1;
	inet_pton(AF_INET, arguments[1], &own.sin_addr);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	check(!bind(listener, (struct sockaddr *)&own, sizeof own) && !listen(listener, 8), "listen");
	peer = accept(listener, 0, 0);
	check(peer >= 0, "accept");
}

// The peer echoes: the connection is whole if a word comes back.
static int echoes(int fd) {
	char word[4];
	return write(fd, "echo", 4) == 4 && recv(fd, word, 4, MSG_WAITALL) == 4 && !memcmp(word, "echo", 4);
}

// Waits until a thread of this process sleeps in the kernel.
__attribute__((unused)) static void await_sleep(pid_t thread) {
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
	for (;;) {
		int file = open(path, O_RDONLY);
		ssize_t count = read(file, line, sizeof line - 1);
		close(file);
		if (count <= 0)
			return;
		line[count] = 0;
		char *end = strrchr(line, ')');
		if (end && end[2] == 'S')
			return;
		sched_yield();
	}
}
