/* several ADDRESS PORT: connections that several processes use, or calls that bypass the library.
 * ADDRESS is an echo server. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in server;

static int dial(void) {
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (void *)&server, sizeof server)) { perror("connect"); exit(2); }
	return fd;
}

static void put(int fd, char byte, size_t count) {
	char block[1000];
	memset(block, byte, sizeof block);
	while (count > 0) {
		ssize_t n = write(fd, block, count < sizeof block ? count : sizeof block);
		if (n <= 0) { printf("write: %s\n", strerror(errno)); exit(1); }
		count -= n;
	}
}

/* Reads so many bytes, and says how many of them were not this one. */
static long get(int fd, char byte, size_t count) {
	char block[4000];
	long others = 0;
	while (count > 0) {
		ssize_t n = read(fd, block, count < sizeof block ? count : sizeof block);
		if (n <= 0) return printf("read: %zd %s\n", n, n ? strerror(errno) : "end"), -1;
		for (ssize_t i = 0; i < n; i++) others += block[i] != byte;
		count -= n;
	}
	return others;
}

static void line(int fd) {
	char text[200];
	size_t n = 0;
	while (n < sizeof text - 1 && read(fd, text + n, 1) == 1 && text[n] != '\n') n++;
	text[n] = 0;
	printf("line: %s\n", text);
}

/* Ends the stream: the echo server ends it, too. */
static void end(int fd) {
	char byte;
	printf("shutdown %d\n", shutdown(fd, SHUT_WR));
	printf("end %zd\n", read(fd, &byte, 1));
	close(fd);
}

static int wait_for(pid_t child) {
	int status = -1;
	waitpid(child, &status, 0);
	return status;
}

static pid_t start(void) {
	fflush(stdout);
	return fork();
}

int main(int argc, char **argv) {
	(void)argc;
	server.sin_family = AF_INET;
	server.sin_port = htons(atoi(argv[2]));
	inet_pton(AF_INET, argv[1], &server.sin_addr);
	char command[200];
	pid_t child;
	int fd, ends[2];

	puts("# a child uses a connection that has carried much");
	fd = dial();
	for (int i = 0; i < 40; i++) { put(fd, 'a', 10000); if (get(fd, 'a', 10000)) return 1; }
	if (!(child = start())) {
		put(fd, 'b', 50000);
		printf("child %ld\n", get(fd, 'b', 50000));
		fflush(stdout);
		_exit(0);
	}
	printf("%d\n", wait_for(child));
	put(fd, 'c', 50000);
	printf("parent %ld\n", get(fd, 'c', 50000));
	end(fd);

	puts("# the parent reads what its child has written");
	fd = dial();
	if (!(child = start())) { put(fd, 'd', 30000); _exit(0); }
	printf("%d\n", wait_for(child));
	printf("parent %ld\n", get(fd, 'd', 30000));
	end(fd);

	puts("# one process reads while another writes");
	fd = dial();
	if (!(child = start())) { long n = get(fd, 'e', 600000); _exit(n != 0); }
	put(fd, 'e', 600000);
	printf("%d\n", wait_for(child));
	end(fd);

	puts("# a grandchild whose parent has ended");
	fd = dial();
	if (pipe(ends)) return 2;
	if (!(child = start())) {
		if (fork()) _exit(0);
		put(fd, 'f', 2000);
		printf("grandchild %ld\n", get(fd, 'f', 2000));
		fflush(stdout);
		close(ends[1]);
		_exit(0);
	}
	int ended = wait_for(child);
	close(ends[1]);
	char byte;
	if (read(ends[0], &byte, 1) < 0) return 2;
	close(ends[0]);
	printf("%d\n", ended);
	put(fd, 'g', 2000);
	printf("parent %ld\n", get(fd, 'g', 2000));
	end(fd);

	puts("# a set and a sleeper see what a child causes");
	fd = dial();
	int set = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 77}, found = {0};
	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	put(fd, 'h', 100);
	printf("%ld\n", get(fd, 'h', 100));
	if (!(child = start())) {
		put(fd, 'i', 100);
		_exit(0);
	}
	int count = epoll_wait(set, &found, 1, 60000);
	printf("%d %lu %x\n", count, (unsigned long)found.data.u64, found.events);
	printf("%d\n", wait_for(child));
	printf("parent %ld\n", get(fd, 'i', 100));
	if (!(child = start())) {
		put(fd, 'j', 100);
		_exit(0);
	}
	struct pollfd polled = {.fd = fd, .events = POLLIN};
	count = poll(&polled, 1, 60000);
	printf("%d %x\n", count, polled.revents);
	printf("%d\n", wait_for(child));
	printf("parent %ld\n", get(fd, 'j', 100));
	end(fd);
	close(set);

	puts("# poll and select wait for a connection that a child uses meanwhile");
	for (int i = 0; i < 20; i++) {
		fd = dial();
		if (!(child = start())) {
			put(fd, 'm', 10);
			_exit(0);
		}
		fd_set ready;
		FD_ZERO(&ready);
		FD_SET(fd, &ready);
		polled.fd = fd;
		if (i % 2) count = select(fd + 1, &ready, 0, 0, 0);
		else count = poll(&polled, 1, 60000);
		int status = wait_for(child);
		int events = i % 2 ? FD_ISSET(fd, &ready) != 0 : polled.revents;
		printf("%d %d %d %ld\n", count, events, status, get(fd, 'm', 10));
		end(fd);
	}

	puts("# names and options stay");
	fd = dial();
	struct sockaddr_in before[2] = {0}, after[2] = {0};
	socklen_t length = sizeof before[0];
	getsockname(fd, (void *)&before[0], &length);
	getpeername(fd, (void *)&before[1], &length);
	FILE *file = fdopen(dup(fd), "w");
	getsockname(fd, (void *)&after[0], &length);
	getpeername(fd, (void *)&after[1], &length);
	printf("%d\n", memcmp(before, after, sizeof before));
	int one = 1;
	printf("%d\n", setsockopt(fd, IPPROTO_TCP, 1, &one, sizeof one));

	puts("# stdio, dprintf, shells, splice");
	fprintf(file, "by stdio %d\n", 1);
	fclose(file);
	line(fd);
	dprintf(fd, "by dprintf %d %s %.2f\n", 2, "words", 3.5);
	line(fd);
	end(fd);
	fd = dial();
	snprintf(command, sizeof command, "echo by system >&%d", fd);
	fflush(stdout);
	printf("%d\n", system(command));
	line(fd);
	snprintf(command, sizeof command, "cat >&%d", fd);
	fflush(stdout);
	FILE *shell = popen(command, "w");
	fputs("by popen\n", shell);
	printf("%d\n", pclose(shell));
	line(fd);
	put(fd, 'k', 1);
	printf("%ld\n", get(fd, 'k', 1));
	if (write(fd, "hello\n", 6) != 6) return 2;
	snprintf(command, sizeof command, "read word <&%d; echo by execl $word >&%d", fd, fd);
	if (!(child = start())) { execl("/bin/sh", "sh", "-c", command, (char *)0); _exit(1); }
	printf("%d\n", wait_for(child));
	line(fd);
	end(fd);
	fd = dial();
	if (pipe(ends)) return 2;
	put(fd, 'l', 5000);
	ssize_t moved = 0;
	while (moved < 5000) {
		ssize_t n = splice(fd, 0, ends[1], 0, 5000 - moved, 0);
		if (n <= 0) { perror("splice"); break; }
		moved += n;
	}
	printf("%zd %ld\n", moved, get(ends[0], 'l', 5000));
	end(fd);

	puts("# a program that knows only its standard streams");
	fd = dial();
	if (!(child = start())) {
		dup2(fd, 0);
		dup2(fd, 1);
		execl("/bin/sh", "sh", "-c", "echo out; read word; echo again $word", (char *)0);
		_exit(1);
	}
	printf("%d\n", wait_for(child));
	line(fd);
	end(fd);
	return 0;
}
