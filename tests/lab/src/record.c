/* record: a CNI plugin that notes every call, for chains under test.

   Each call is appended to ARGV0.calls in one write: two lengths (u32, native), then the CNI_* environment as
   KEY=VALUE with NUL after each, then stdin. ADD returns prevResult; where the file ARGV0.fails exists, the
   answer is that file's content and status 1. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

extern char **environ;
static char environment[1 << 16], conf[1 << 20];

/* Prints the object under "prevResult". In JSON text, this key with its bare quotes is never inside a string. */
static void print_previous(void) {
  const char *start = strstr(conf, "\"prevResult\":");
  if (!start) return;
  start += strlen("\"prevResult\":");
  int depth = 0, quoted = 0;
  for (const char *at = start; *at; at++) {
    if (*at == '"') quoted = !quoted;
    if (*at == '\\') at++;
    if (quoted) continue;
    depth += (*at == '{') - (*at == '}');
    if (*at == '}' && !depth) {
      fwrite(start, 1, at + 1 - start, stdout);
      return;
    }
  }
}

static int copy_file(const char *path) {
  char bytes[4096];
  int file = open(path, O_RDONLY);
  if (file < 0) return 0;
  ssize_t size = read(file, bytes, sizeof bytes);
  fwrite(bytes, 1, size > 0 ? size : 0, stdout);
  return 1;
}

int main(int argc, char **argv) {
  uint32_t size[2] = {0};
  char path[4096];
  const char *command = getenv("CNI_COMMAND");
  if (argc < 1 || !command) return 1;
  for (char **each = environ; *each; each++) {
    size_t length = strlen(*each) + 1;
    if (strncmp(*each, "CNI_", 4) || size[0] + length > sizeof environment) continue;
    memcpy(environment + size[0], *each, length);
    size[0] += length;
  }
  size[1] = fread(conf, 1, sizeof conf - 1, stdin);
  struct iovec parts[] = {{size, sizeof size}, {environment, size[0]}, {conf, size[1]}};
  snprintf(path, sizeof path, "%s.calls", argv[0]);
  int calls = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (calls < 0 || writev(calls, parts, 3) < 0) return 1;
  snprintf(path, sizeof path, "%s.fails", argv[0]);
  if (!strcmp(command, "ADD")) {
    if (copy_file(path)) return 1;
    print_previous();
  }
  return 0;
}
