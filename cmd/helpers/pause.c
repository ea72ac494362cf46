/*
 * pause holds a pod's namespaces open: it is the first process of every pod.
 * In a pod with a shared process namespace it is process 1, so it reaps what
 * others orphan. It does nothing else, and there is one per pod: its size
 * counts.
 */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void)
{
	sigset_t signals;
	int signal;

	/*
	 * The kernel discards signals that process 1 does not handle, but not
	 * those it has blocked: sigwait gets them without any handler.
	 */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGCHLD);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) != 0)
		return 1;

	for (;;) {
		if (sigwait(&signals, &signal) != 0)
			return 2;
		if (signal != SIGCHLD)
			return 0;
		/* One SIGCHLD may stand for several children. */
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
