/* box: the program of every container.

     box serve PORT...           an application: greets with "app PORT from PEER", then sends back what it gets
     box proxy INBOUND OUTBOUND  a proxy: greets with "inbound ORIGINAL" or "outbound ORIGINAL", where ORIGINAL
                                 is the destination before redirection, then carries the bytes there and back
     box connect ADDRESS PORT    prints all greetings on its way; status 1 and the reason when there is no way

   So the answer to one connection is its route, one line for each program that it has passed. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { ORIGINAL_DESTINATION = 80, LISTENERS = 16, PATIENCE = 3 /* seconds */ };

union address {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
};

struct listener {
  int socket, port;
  const char *name;
};

static struct listener listeners[LISTENERS];
static int count;

static void end(int signal) {
  (void)signal;
  _exit(0);
}

static int fail(const char *what) {
  printf("%s: %s\n", what, strerror(errno));
  return 1;
}

static int port_of(const union address *one) {
  return ntohs(one->any.sa_family == AF_INET ? one->v4.sin_port : one->v6.sin6_port);
}

static const char *text_of(const union address *one) {
  static char text[INET6_ADDRSTRLEN];
  const void *raw = one->any.sa_family == AF_INET ? (const void *)&one->v4.sin_addr : &one->v6.sin6_addr;
  return inet_ntop(one->any.sa_family, raw, text, sizeof text);
}

/* Size of the address in `one`, 0 when `text` is none. */
static socklen_t parse(const char *text, int port, union address *one) {
  memset(one, 0, sizeof *one);
  if (inet_pton(AF_INET, text, &one->v4.sin_addr) == 1) {
    one->v4.sin_family = AF_INET;
    one->v4.sin_port = htons(port);
    return sizeof one->v4;
  }
  if (inet_pton(AF_INET6, text, &one->v6.sin6_addr) != 1) return 0;
  one->v6.sin6_family = AF_INET6;
  one->v6.sin6_port = htons(port);
  return sizeof one->v6;
}

static int listen_at(const char *text, const char *port, const char *name) {
  union address here;
  socklen_t size = parse(text, atoi(port), &here);
  int yes = 1, one = socket(here.any.sa_family, SOCK_STREAM, 0);
  if (count == LISTENERS || one < 0) return fail("socket");
  setsockopt(one, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (here.any.sa_family == AF_INET6) setsockopt(one, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  if (bind(one, &here.any, size) || listen(one, 128)) {
    /* A pod without IPv6 has no ::1, and every pod has IPv4. */
    if (here.any.sa_family == AF_INET6) return close(one);
    return fail(port);
  }
  listeners[count++] = (struct listener){one, atoi(port), name};
  return 0;
}

static int connect_to(const union address *there, socklen_t size) {
  struct timeval patience = {.tv_sec = PATIENCE};
  int one = socket(there->any.sa_family, SOCK_STREAM, 0);
  if (one < 0) return -1;
  setsockopt(one, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience); /* bounds connect() too */
  if (!connect(one, &there->any, size)) return one;
  if (errno == EINPROGRESS) errno = ETIMEDOUT;
  close(one);
  return -1;
}

/* Copies what `from` has to `to`; 0 when `from` has ended, which is passed on. */
static int copy(int from, int to) {
  char bytes[65536];
  ssize_t size = read(from, bytes, sizeof bytes), done = 0;
  while (done < size) {
    ssize_t sent = write(to, bytes + done, size - done);
    if (sent < 0) size = 0;
    done += sent;
  }
  if (size <= 0) shutdown(to, SHUT_WR);
  return size > 0;
}

static void relay(int near, int far) {
  struct pollfd ends[2] = {{.fd = near, .events = POLLIN}, {.fd = far, .events = POLLIN}};
  while ((ends[0].fd >= 0 || ends[1].fd >= 0) && poll(ends, 2, -1) > 0) {
    if (ends[0].revents && !copy(near, far)) ends[0].fd = -1;
    if (ends[1].revents && !copy(far, near)) ends[1].fd = -1;
    ends[0].revents = ends[1].revents = 0;
  }
}

static void carry_on(int near, const struct listener *listener) {
  union address there = {0};
  socklen_t size = sizeof there;
  int v4 = getsockname(near, &there.any, &size) == 0 && there.any.sa_family == AF_INET;
  size = sizeof there;
  int unknown = getsockopt(near, v4 ? IPPROTO_IP : IPPROTO_IPV6, ORIGINAL_DESTINATION, &there, &size);
  if (unknown || port_of(&there) == listener->port) {
    dprintf(near, "%s direct\n", listener->name);
    return;
  }
  dprintf(near, "%s %s:%d\n", listener->name, text_of(&there), port_of(&there));
  int far = connect_to(&there, v4 ? sizeof there.v4 : sizeof there.v6);
  if (far < 0)
    dprintf(near, "%s cannot connect: %s\n", listener->name, strerror(errno));
  else
    relay(near, far);
}

static void serve(int near, const struct listener *listener, const union address *peer) {
  if (listener->name) {
    carry_on(near, listener);
  } else {
    dprintf(near, "app %d from %s\n", listener->port, text_of(peer));
    while (copy(near, near)) {
    }
  }
  exit(0);
}

static _Noreturn void accept_for_ever(void) {
  struct pollfd waiting[LISTENERS];
  for (int i = 0; i < count; i++) waiting[i] = (struct pollfd){.fd = listeners[i].socket, .events = POLLIN};
  puts("ready");
  for (;;) {
    if (poll(waiting, count, -1) < 0) continue;
    for (int i = 0; i < count; i++) {
      union address peer;
      socklen_t size = sizeof peer;
      int near = waiting[i].revents ? accept(waiting[i].fd, &peer.any, &size) : -1;
      if (near < 0) continue;
      if (fork() == 0) serve(near, &listeners[i], &peer);
      close(near);
    }
  }
}

static int client(const char *text, const char *port) {
  union address there;
  socklen_t size = parse(text, atoi(port), &there);
  if (!size) return fail(text);
  int far = connect_to(&there, size);
  if (far < 0) return fail("cannot connect");
  struct timeval patience = {.tv_sec = PATIENCE};
  setsockopt(far, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  shutdown(far, SHUT_WR);
  char bytes[4096];
  ssize_t size_read;
  while ((size_read = read(far, bytes, sizeof bytes)) > 0) fwrite(bytes, 1, size_read, stdout);
  return size_read ? fail("cannot read") : 0;
}

int main(int argc, char **argv) {
  int failed = 0;
  const char *verb = argc > 2 ? argv[1] : "";
  setvbuf(stdout, 0, _IOLBF, 0);
  signal(SIGTERM, end); /* process 1 of a container has no default action */
  signal(SIGCHLD, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  if (!strcmp(verb, "connect") && argc == 4) return client(argv[2], argv[3]);
  if (!strcmp(verb, "serve")) {
    for (int i = 2; i < argc; i++) failed |= listen_at("0.0.0.0", argv[i], 0) || listen_at("::", argv[i], 0);
  } else if (!strcmp(verb, "proxy") && argc == 4) {
    failed |= listen_at("0.0.0.0", argv[2], "inbound") || listen_at("::", argv[2], "inbound");
    failed |= listen_at("127.0.0.1", argv[3], "outbound") || listen_at("::1", argv[3], "outbound");
  } else {
    puts("usage: box serve PORT... | proxy INBOUND OUTBOUND | connect ADDRESS PORT");
    return 2;
  }
  if (failed) return 1;
  accept_for_ever();
}
