/* ask: the part of a proxy that asks for destinations, over HTTP/2 in clear text.

     ask follow ADDRESS PORT PATH REQUEST   keeps one call open, and makes it again whenever it has ended
     ask repeat ADDRESS PORT PATH REQUEST   ends each call after its first message, and makes the next

   PATH is the method's (/package.Service/Method), REQUEST its message in hexadecimal. Lines that it writes:
   "connected", "message HEX", "ended" (by the other side), "cannot connect: REASON". Less than 64 KiB come in
   one call, so that no window is ever updated. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DATA, HEADERS, RST_STREAM = 3, SETTINGS, PING = 6 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, HEAD = 9, LARGEST = 1 << 14, PAUSE = 20000 /* us */ };

struct frame {
  int kind, flags;
  size_t size;
  uint8_t body[LARGEST];
};

static uint8_t request[256], message[1 << 16];
static size_t request_size, got; /* `got`: bytes of `message` so far, with the five of gRPC before it */

static void end(int signal) {
  (void)signal;
  _exit(0);
}

static size_t put_text(uint8_t *to, const char *text) { /* below 127 bytes */
  to[0] = strlen(text);
  memcpy(to + 1, text, to[0]);
  return to[0] + 1;
}

static int put_frame(int server, int kind, int flags, int stream, const void *body, size_t size) {
  uint8_t bytes[HEAD + 512] = {size >> 16, size >> 8, size, kind, flags, 0, 0, 0, stream};
  memcpy(bytes + HEAD, body, size);
  return send(server, bytes, HEAD + size, MSG_NOSIGNAL) == (ssize_t)(HEAD + size);
}

static int put_call(int server, const char *path) {
  uint8_t fields[512] = {0x83, 0x86}; /* :method POST, :scheme http; what follows leaves no trace in tables */
  size_t size = 2;
  fields[size++] = 4; /* :path */
  size += put_text(fields + size, path);
  fields[size++] = 1; /* :authority */
  size += put_text(fields + size, "localhost");
  fields[size++] = 0x0f, fields[size++] = 31 - 15; /* content-type */
  size += put_text(fields + size, "application/grpc");
  fields[size++] = 0;
  size += put_text(fields + size, "te");
  size += put_text(fields + size, "trailers");
  return put_frame(server, HEADERS, END_HEADERS, 1, fields, size) &&
         put_frame(server, DATA, END_STREAM, 1, request, request_size);
}

static int get_frame(int server, struct frame *one) {
  uint8_t head[HEAD];
  if (recv(server, head, HEAD, MSG_WAITALL) != HEAD) return 0;
  one->size = head[0] << 16 | head[1] << 8 | head[2];
  one->kind = head[3], one->flags = head[4];
  if (one->size > LARGEST) return 0;
  return !one->size || recv(server, one->body, one->size, MSG_WAITALL) == (ssize_t)one->size;
}

/* Takes a DATA frame in; returns how many messages it has completed. */
static int take(const struct frame *one) {
  int whole = 0;
  if (got + one->size > sizeof message) return 0;
  memcpy(message + got, one->body, one->size);
  got += one->size;
  while (got >= 5) {
    size_t size = (size_t)message[1] << 24 | message[2] << 16 | message[3] << 8 | message[4];
    if (got < 5 + size) break;
    printf("message ");
    for (size_t i = 0; i < size; i++) printf("%02x", message[5 + i]);
    puts("");
    got -= 5 + size;
    memmove(message, message + 5 + size, got);
    whole++;
  }
  return whole;
}

/* One call, to its end; says whether it was the other side that has ended it. */
static int call(int server, const char *path, int follow) {
  static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  static struct frame one;
  got = 0;
  if (send(server, preface, sizeof preface - 1, MSG_NOSIGNAL) < 0) return 1;
  if (!put_frame(server, SETTINGS, 0, 0, "", 0) || !put_call(server, path)) return 1;
  while (get_frame(server, &one)) {
    if (one.kind == DATA && take(&one) && !follow) return 0;
    if (one.kind == RST_STREAM || (one.kind <= HEADERS && one.flags & END_STREAM)) return 1;
    if ((one.kind == SETTINGS || one.kind == PING) && !(one.flags & ACK))
      put_frame(server, one.kind, ACK, 0, one.body, one.kind == PING ? one.size : 0);
  }
  return 1;
}

static void connect_and_call(const struct sockaddr_in *there, const char *path, int follow) {
  int server = socket(AF_INET, SOCK_STREAM, 0);
  if (server < 0 || connect(server, (const struct sockaddr *)there, sizeof *there)) {
    printf("cannot connect: %s\n", strerror(errno));
  } else {
    puts("connected");
    if (call(server, path, follow)) puts("ended");
  }
  if (server >= 0) close(server);
}

int main(int argc, char **argv) {
  struct sockaddr_in there = {.sin_family = AF_INET};
  setvbuf(stdout, 0, _IOLBF, 0);
  signal(SIGTERM, end); /* process 1 of a container has no default action */
  if (argc != 6 || inet_pton(AF_INET, argv[2], &there.sin_addr) != 1) {
    puts("usage: ask follow|repeat ADDRESS PORT PATH REQUEST");
    return 2;
  }
  there.sin_port = htons(atoi(argv[3]));
  size_t size = strlen(argv[5]) / 2;
  if (size > sizeof request - 5 || strlen(argv[4]) > 126) return 2;
  for (size_t i = 0; i < size; i++) {
    unsigned byte;
    if (sscanf(argv[5] + 2 * i, "%2x", &byte) != 1) return 2;
    request[5 + i] = byte;
  }
  request[4] = size;
  request_size = 5 + size;
  for (;; usleep(PAUSE)) connect_and_call(&there, argv[4], !strcmp(argv[1], "follow"));
}
