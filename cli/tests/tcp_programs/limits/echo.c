/* echo ROLE ADDRESS PORT: echoes one connection until its end, in a thread, after it has accepted ("serve")
 * or made it. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int connection;

static void *echo(void *unused) {
	ssize_t count = 0;
	char *bytes = malloc(65536);
	while ((count = read(connection, bytes, 65536)) > 0) {
		for (ssize_t done = 0; done < count;) {
			ssize_t sent = write(connection, bytes + done, count - done);
			if (sent <= 0) exit(1);
			done += sent;
		}
	}
	free(bytes);
	(void)unused;
	return count == 0 ? "echoed" : NULL;
}

int main(int count, char **words) {
	if (count < 4) return 2;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(words[3])) };
	inet_pton(AF_INET, words[2], &at.sin_addr);
#ifdef LOCKS
	if (mlockall(MCL_CURRENT | MCL_FUTURE)) { perror("mlockall"); return 2; }
#endif
	int own = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	if (!strcmp(words[1], "serve")) {
		setsockopt(own, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		if (bind(own, (void *)&at, sizeof at) || listen(own, 8)) { perror("listen"); return 2; }
		connection = accept(own, NULL, NULL);
	} else {
		if (connect(own, (void *)&at, sizeof at)) { perror("connect"); return 2; }
		connection = own;
	}
#ifdef LOCKS
	if (mlockall(MCL_CURRENT | MCL_FUTURE)) { perror("mlockall"); return 2; }
#endif
	/* A child that uses no socket ends as it would without the library. */
	pid_t child = fork();
	if (child == 0) return 0;
	int status = 1;
	if (waitpid(child, &status, 0) != child || status) { printf("the child ended with %x\n", status); return 1; }
	pthread_t thread;
	void *said = NULL;
	pthread_create(&thread, NULL, echo, NULL);
	pthread_join(thread, &said);
	close(connection);
	printf("%s\n", said ? (char *)said : "failed");
	return !said;
}
