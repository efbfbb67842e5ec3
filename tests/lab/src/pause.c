/* pause: process 1 of every sandbox. It keeps the pod's namespaces, and ends when it is told to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

static void end(int signal) {
  (void)signal;
  _exit(0);
}

int main(void) {
  signal(SIGCHLD, reap);
  signal(SIGTERM, end);
  signal(SIGINT, end);
  for (;;) pause();
}
