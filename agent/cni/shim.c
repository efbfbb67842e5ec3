/*
 * pointsman-cni: the CNI plugin that stands last in the chain of a node's network.
 *
 * The agent decides, this program carries: the environment and the configuration go to the agent over a unix
 * socket, and a successful ADD prints the previous plugin's result byte for byte. Where no agent answers, the
 * configuration decides alone (whenAgentAway). Nothing is allocated, every read is bounded, and one deadline
 * covers a verb from its first byte of stdin to the last byte of the answer.
 *
 * Request: magic, u32 length of env, u32 length of stdin, env ("KEY=VALUE\0" for each variable), stdin.
 * Answer:  magic, u32 exit code (0 or 1), u32 length of body, body (the CNI error object of exit code 1).
 * Integers are little-endian. One request per connection.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define NEWEST_VERSION "1.1.0"
#define UNVERSIONED "0.1.0" /* what libcni takes a configuration without cniVersion for */
#ifndef DEFAULT_SOCKET
#define DEFAULT_SOCKET "/run/pointsman/cni.sock"
#endif

enum { MAX_ENV = 64 << 10, MAX_STDIN = 1 << 20, MAX_BODY = 64 << 10, MAX_DEPTH = 64, MAX_PART = 253 };
enum { MAGIC = 8, HEADER = 16 };
enum { RETRY_MS = 20, OUTPUT_MS = 1000 };

enum code { /* of the CNI specification */
    FINE = 0,
    INCOMPATIBLE_VERSION = 1,
    INVALID_ENVIRONMENT = 4,
    IO_FAILURE = 5,
    DECODING_FAILURE = 6,
    INVALID_CONFIG = 7,
    TRY_AGAIN_LATER = 11,
    NOT_AVAILABLE = 50,
};

enum verb_id { ADD, DEL, CHECK, STATUS, GC, VERSION };

static const struct verb {
    enum verb_id id;
    const char *name;
    int deadline, window; /* ms: for the whole verb, and for an agent that is just being restarted */
    const char *needs[3];
} verbs[] = {
    {ADD, "ADD", 10000, 1500, {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}},
    {DEL, "DEL", 2000, 300, {"CNI_CONTAINERID"}},
    {CHECK, "CHECK", 5000, 300, {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}},
    {STATUS, "STATUS", 2000, 300, {0}},
    {GC, "GC", 5000, 300, {0}},
    {VERSION, "VERSION", 1000, 0, {0}},
};

static const char *const versions[] = {"0.3.0", "0.3.1", "0.4.0", "1.0.0", NEWEST_VERSION};
static const char *const variables[] = {"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS",
                                        "CNI_IFNAME",  "CNI_ARGS",        "CNI_PATH"};
static const char magic[MAGIC] = "PMCNI\0\0\1";

static char frame[HEADER + MAX_ENV + MAX_STDIN + 1]; /* one byte more than allowed tells "too long" */
static char answer[HEADER + MAX_BODY + 1];

/* ---- text ---------------------------------------------------------------------------------------------- */

struct slice { /* `at` is NULL for what is absent */
    const char *at;
    size_t len;
};

struct text { /* always ends in NUL; what has no room is cut off */
    char *bytes;
    size_t room, len;
};

#define TEXT(name, size)          \
    static char name##_bytes[size]; \
    static struct text name = {name##_bytes, size, 0}

TEXT(message, 2048); /* what is wrong: "msg" of an error object, or a line on stderr */
TEXT(details, 2048); /* what to do about it */
TEXT(reason, 2048);  /* why the agent counts as away */
TEXT(subject, 1024); /* whom the verb is about */
TEXT(output, 32768);

static void put(struct text *to, const char *part, size_t len)
{
    size_t left = to->room - to->len - 1;
    if (len > left) len = left;
    memcpy(to->bytes + to->len, part, len);
    to->len += len;
    to->bytes[to->len] = 0;
}

/* Sets `to` to its parts, a list that ends in NULL. A part that is too long for a message is cut. */
__attribute__((sentinel)) static void compose(struct text *to, ...)
{
    va_list parts;
    va_start(parts, to);
    to->len = 0;
    for (const char *part; (part = va_arg(parts, const char *));) {
        size_t len = strnlen(part, MAX_PART + 1);
        put(to, part, len > MAX_PART ? MAX_PART : len);
        if (len > MAX_PART) put(to, "...", 3);
    }
    va_end(parts);
}

static const char *decimal(unsigned long number)
{
    static char digits[24];
    char *at = digits + sizeof digits - 1;
    do *--at = (char)('0' + number % 10);
    while (number /= 10);
    return at;
}

/* Length of the well-formed UTF-8 sequence at `s`, a string that ends in NUL; 0 when there is none. */
static size_t utf8_sequence(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t len = u[0] < 0x80 ? 1 : u[0] < 0xc2 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : u[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < len; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    bool overlong = (u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xf0 && u[1] < 0x90);
    bool outside = (u[0] == 0xed && u[1] > 0x9f) || (u[0] == 0xf4 && u[1] > 0x8f);
    return overlong || outside ? 0 : len;
}

static void put_json(struct text *to, const char *string)
{
    static const char hex[] = "0123456789abcdef";
    put(to, "\"", 1);
    for (const char *s = string; *s;) {
        size_t len = utf8_sequence(s);
        unsigned char c = (unsigned char)*s;
        if (!len)
            put(to, "\\ufffd", 6);
        else if (c < 0x20)
            put(to, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
        else {
            if (c == '"' || c == '\\') put(to, "\\", 1);
            put(to, s, len);
        }
        s += len ? len : 1;
    }
    put(to, "\"", 1);
}

/* ---- time and descriptors ------------------------------------------------------------------------------ */

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* True once `fd` is ready; false with errno ETIMEDOUT when it is not before `until`. */
static bool await(int fd, short events, long long until)
{
    struct pollfd waiting = {fd, events, 0};
    for (;;) {
        long long left = until - now();
        int ready = poll(&waiting, 1, left > 0 ? (int)left : 0);
        if (ready > 0) return true;
        if (ready == 0) errno = ETIMEDOUT;
        if (ready == 0 || errno != EINTR) return false;
    }
}

static bool passing(int error) { return error == EINTR || error == EAGAIN; }

/* One line on stderr, where it can be written at once. */
static void note(const char *verb, const char *line)
{
    compose(&output, "pointsman-cni: ", verb, ": ", NULL);
    for (; *line; line++) put(&output, (unsigned char)*line < 0x20 ? "?" : line, 1);
    put(&output, "\n", 1);
    if (await(2, POLLOUT, 0) && write(2, output.bytes, output.len) < 0) return; /* there is nobody to tell */
}

/* Exit code: 0 once all is written to stdout. After POLLOUT a write of PIPE_BUF bytes never blocks. */
static int print(const char *bytes, size_t len)
{
    long long until = now() + OUTPUT_MS;
    while (len) {
        bool ready = await(1, POLLOUT, until);
        ssize_t written = ready ? write(1, bytes, len < PIPE_BUF ? len : PIPE_BUF) : -1;
        if (written < 0 && ready && passing(errno)) continue;
        if (written < 0) {
            compose(&message, "cannot write the result: ", strerror(errno), NULL);
            note("stdout", message.bytes);
            return 1;
        }
        bytes += written;
        len -= (size_t)written;
    }
    return 0;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

struct scanner {
    const char *at, *end;
    const char *wrong; /* what is wrong at `at`, once a scan has failed */
};

static bool fails(struct scanner *s, const char *wrong)
{
    s->wrong = s->at == s->end ? "it ends too early" : wrong;
    return false;
}

static int peek(const struct scanner *s) { return s->at < s->end ? (unsigned char)*s->at : -1; }

static bool take(struct scanner *s, int c)
{
    if (peek(s) != c) return false;
    s->at++;
    return true;
}

static void skip_blanks(struct scanner *s)
{
    while (peek(s) == ' ' || peek(s) == '\t' || peek(s) == '\n' || peek(s) == '\r') s->at++;
}

static int hex_digit(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Bytes of 0x80 and above pass unseen, as in Go: they are carried, not read. */
static bool skip_string(struct scanner *s)
{
    if (!take(s, '"')) return fails(s, "expected a string");
    while (!take(s, '"')) {
        if (peek(s) < 0x20) return fails(s, "control character in a string");
        if (!take(s, '\\')) {
            s->at++;
        } else if (take(s, 'u')) {
            for (int i = 0; i < 4; i++, s->at++)
                if (hex_digit(peek(s)) < 0) return fails(s, "expected a hexadecimal digit");
        } else {
            if (peek(s) <= 0 || !strchr("\"\\/bfnrt", peek(s))) return fails(s, "unknown escape in a string");
            s->at++;
        }
    }
    return true;
}

static bool skip_digits(struct scanner *s)
{
    if (peek(s) < '0' || peek(s) > '9') return fails(s, "expected a digit");
    while (peek(s) >= '0' && peek(s) <= '9') s->at++;
    return true;
}

static bool skip_number(struct scanner *s)
{
    take(s, '-');
    if (!take(s, '0') && !skip_digits(s)) return false;
    if (take(s, '.') && !skip_digits(s)) return false;
    if (!take(s, 'e') && !take(s, 'E')) return true;
    if (!take(s, '+')) take(s, '-');
    return skip_digits(s);
}

static bool skip_word(struct scanner *s, const char *word)
{
    for (; *word; word++)
        if (!take(s, *word)) return fails(s, "expected a value");
    return true;
}

static bool skip_scalar(struct scanner *s)
{
    switch (peek(s)) {
    case '"': return skip_string(s);
    case 't': return skip_word(s, "true");
    case 'f': return skip_word(s, "false");
    case 'n': return skip_word(s, "null");
    case '-': return skip_number(s);
    }
    return peek(s) >= '0' && peek(s) <= '9' ? skip_number(s) : fails(s, "expected a value");
}

static bool skip_key(struct scanner *s)
{
    skip_blanks(s);
    if (!skip_string(s)) return false;
    skip_blanks(s);
    return take(s, ':') || fails(s, "expected a colon");
}

/* One value of any kind, without recursion: `closers` holds the bracket that ends each open container. */
static bool skip_value(struct scanner *s)
{
    char closers[MAX_DEPTH];
    size_t depth = 0;
    for (;;) {
        skip_blanks(s);
        int opener = peek(s);
        if (opener == '{' || opener == '[') {
            if (depth == MAX_DEPTH) return fails(s, "nested too deeply");
            closers[depth++] = opener == '{' ? '}' : ']';
            s->at++;
            skip_blanks(s);
            if (peek(s) != closers[depth - 1]) {
                if (opener == '{' && !skip_key(s)) return false;
                continue;
            }
        } else if (!skip_scalar(s)) {
            return false;
        }
        for (; depth; depth--) {
            skip_blanks(s);
            if (!take(s, closers[depth - 1])) break;
        }
        if (!depth) return true; /* without the blanks that follow: they are not part of the value */
        if (!take(s, ',')) return fails(s, "expected a comma or a closing bracket");
        if (closers[depth - 1] == '}' && !skip_key(s)) return false;
    }
}

static unsigned code_unit(const char *digits)
{
    unsigned unit = 0;
    for (int i = 0; i < 4; i++) unit = unit << 4 | (unsigned)hex_digit((unsigned char)digits[i]);
    return unit;
}

/* The character of a \u escape, or of a pair of them; U+FFFD for half a pair, as in Go. */
static unsigned code_point(const char **at)
{
    unsigned high = code_unit(*at + 2);
    *at += 6;
    if (high < 0xd800 || high > 0xdfff) return high;
    if (high > 0xdbff || (*at)[0] != '\\' || (*at)[1] != 'u') return 0xfffd;
    unsigned low = code_unit(*at + 2);
    if (low < 0xdc00 || low > 0xdfff) return 0xfffd;
    *at += 6;
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

static size_t encode(unsigned point, char *to)
{
    size_t len = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len; --i; point >>= 6) to[i] = (char)(0x80 | (point & 0x3f));
    to[0] = (char)(lead[len] | point);
    return len;
}

/* `to`, set to the string that a scanned value is; NULL when it is none, has no room, or holds a NUL. */
static const char *decode(const char *at, char *to, size_t room)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    size_t len = 0;
    if (!at || *at != '"') return NULL;
    for (at++; *at != '"';) {
        char bytes[4] = {*at};
        size_t width = 1;
        if (*at != '\\') {
            at++;
        } else if (at[1] == 'u') {
            width = encode(code_point(&at), bytes);
        } else {
            bytes[0] = meant[strchr(escapes, at[1]) - escapes];
            at += 2;
        }
        if (len + width >= room || !bytes[0]) return NULL;
        memcpy(to + len, bytes, width);
        len += width;
    }
    to[len] = 0;
    return to;
}

/* ---- the configuration --------------------------------------------------------------------------------- */

enum key { CNI_VERSION, PREV_RESULT, SOCKET, WHEN_AGENT_AWAY, EXEMPT_NAMESPACES, AGENT_POD, KEYS };
static const char *const keys[KEYS] = {"cniVersion",       "prevResult", "socket", "whenAgentAway",
                                       "exemptNamespaces", "agentPod"};

struct conf {
    struct slice raw[KEYS]; /* values as they were written; absent or null: `at` is NULL */
    char version[64];       /* "" where the configuration has none */
    char socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
    char agent_pod[512]; /* NAMESPACE/NAME-PREFIX, or "" */
    bool deny;
};

/* The members that matter of the object that `s` holds, and nothing else. The last of equal keys counts. */
static bool scan_members(struct scanner *s, struct slice raw[KEYS])
{
    skip_blanks(s);
    if (!take(s, '{')) return fails(s, "expected an object");
    skip_blanks(s);
    if (peek(s) != '}') do {
            char name[32];
            skip_blanks(s);
            const char *key = s->at;
            if (!skip_key(s)) return false;
            skip_blanks(s);
            struct slice value = {s->at, 0};
            if (!skip_value(s)) return false;
            value.len = (size_t)(s->at - value.at);
            key = decode(key, name, sizeof name);
            for (int i = 0; key && i < KEYS; i++)
                if (!strcmp(key, keys[i])) raw[i] = *value.at == 'n' ? (struct slice){0} : value;
            skip_blanks(s);
        } while (take(s, ','));
    if (!take(s, '}')) return fails(s, "expected a comma or a closing bracket");
    skip_blanks(s);
    return s->at == s->end || fails(s, "something follows the object");
}

static enum code undecodable(const char *wrong, long offset)
{
    const char *at = decimal((unsigned long)offset);
    compose(&message, "cannot decode the configuration on stdin: ", wrong, " at byte ", at, NULL);
    return DECODING_FAILURE;
}

static enum code decode_conf(struct slice text, struct conf *conf)
{
    struct scanner s = {text.at, text.at + text.len, NULL};
    struct slice *version = &conf->raw[CNI_VERSION], *result = &conf->raw[PREV_RESULT];
    if (!text.len) return undecodable("it is empty, it ends", 0);
    if (!scan_members(&s, conf->raw)) {
        memset(conf->raw, 0, sizeof conf->raw);
        return undecodable(s.wrong, s.at - text.at);
    }
    if (version->at && !decode(version->at, conf->version, sizeof conf->version)) {
        *conf->version = 0;
        return undecodable("cniVersion is not a short string", version->at - text.at);
    }
    if (result->at && *result->at != '{')
        return undecodable("prevResult is not an object", result->at - text.at);
    return FINE;
}

static bool supported(const char *version)
{
    for (size_t i = 0; i < COUNT(versions); i++)
        if (!strcmp(version, versions[i])) return true;
    return false;
}

static void put_versions(struct text *to)
{
    for (size_t i = 0; i < COUNT(versions); i++) {
        put(to, i ? "," : "[", 1);
        put_json(to, versions[i]);
    }
    put(to, "]", 1);
}

static enum code check_version(const struct conf *conf)
{
    if (!conf->version[0] || supported(conf->version)) return FINE;
    compose(&message, "incompatible CNI versions: the configuration has \"", conf->version, "\"", NULL);
    compose(&details, "pointsman-cni supports ", NULL);
    put_versions(&details);
    return INCOMPATIBLE_VERSION;
}

static enum code invalid(const char *setting, const char *rule)
{
    compose(&message, "invalid configuration of pointsman-cni: \"", setting, "\" must be ", rule, NULL);
    compose(&details, "run `pointsman install-cni` to write the entry anew", NULL);
    return INVALID_CONFIG;
}

static bool is_list_of_strings(struct slice value)
{
    struct scanner s = {value.at, value.at + value.len, NULL};
    if (!take(&s, '[')) return false;
    skip_blanks(&s);
    if (peek(&s) != ']') do {
            skip_blanks(&s);
            if (!skip_string(&s)) return false;
            skip_blanks(&s);
        } while (take(&s, ','));
    return take(&s, ']');
}

/* The settings of our own. Each that is invalid is as if it were absent, and the last of them is named. */
static enum code read_settings(struct conf *conf)
{
    enum code code = FINE;
    struct slice *raw = conf->raw;
    char word[8];
    const char *path = raw[SOCKET].at ? decode(raw[SOCKET].at, conf->socket, sizeof conf->socket) : "/";
    if (!path || *path != '/') {
        strcpy(conf->socket, DEFAULT_SOCKET);
        code = invalid("socket", "an absolute path of at most 107 bytes");
    }
    if (raw[EXEMPT_NAMESPACES].at && !is_list_of_strings(raw[EXEMPT_NAMESPACES])) {
        raw[EXEMPT_NAMESPACES].at = NULL;
        code = invalid("exemptNamespaces", "a list of names");
    }
    if (raw[AGENT_POD].at) {
        const char *pod = decode(raw[AGENT_POD].at, conf->agent_pod, sizeof conf->agent_pod);
        const char *slash = pod ? strchr(pod, '/') : NULL;
        if (!slash || slash == pod || !slash[1]) {
            conf->agent_pod[0] = 0;
            code = invalid("agentPod", "NAMESPACE/NAME-PREFIX");
        }
    }
    if (raw[WHEN_AGENT_AWAY].at) {
        const char *policy = decode(raw[WHEN_AGENT_AWAY].at, word, sizeof word);
        conf->deny = policy && !strcmp(policy, "deny");
        if (!policy || (!conf->deny && strcmp(policy, "allow") != 0))
            code = invalid("whenAgentAway", "\"allow\" or \"deny\"");
    }
    return code;
}

/* ---- the pod ------------------------------------------------------------------------------------------- */

struct pod { /* name "" for what is no Kubernetes pod */
    const char *namespace, *name;
};

/* Blanks and quotes are no part of a Kubernetes name: some callers quote a value, some the whole list. */
static char *trim(char *s)
{
    static const char edge[] = " \t\n\r\"'";
    s += strspn(s, edge);
    for (char *end = s + strlen(s); end > s && strchr(edge, end[-1]);) *--end = 0;
    return s;
}

static struct pod read_pod(void)
{
    static char args[MAX_ENV];
    struct pod pod = {"default", ""};
    const char *given = getenv("CNI_ARGS");
    if (given) memcpy(args, given, strnlen(given, sizeof args - 1));
    for (char *entry = args, *next; entry; entry = next) {
        next = strchr(entry, ';');
        if (next) *next++ = 0;
        char *value = strchr(entry, '=');
        if (!value) continue;
        *value++ = 0;
        const char *key = trim(entry);
        value = trim(value);
        if (!strcmp(key, "K8S_POD_NAMESPACE") && *value) pod.namespace = value;
        if (!strcmp(key, "K8S_POD_NAME")) pod.name = value;
    }
    return pod;
}

static bool lists(struct slice strings, const char *wanted)
{
    struct scanner s = {strings.at, strings.at ? strings.at + strings.len : NULL, NULL};
    char name[256];
    while (s.at < s.end) {
        if (peek(&s) != '"') {
            s.at++;
            continue;
        }
        const char *listed = decode(s.at, name, sizeof name);
        if (listed && !strcmp(listed, wanted)) return true;
        skip_string(&s);
    }
    return false;
}

/* Pods that must start without an agent: the agent's own above all, or a node could never be repaired. */
static bool exempt(const struct conf *conf, struct pod pod)
{
    if (!*pod.name || lists(conf->raw[EXEMPT_NAMESPACES], pod.namespace)) return true;
    const char *slash = strchr(conf->agent_pod, '/');
    if (!slash) return false;
    size_t len = (size_t)(slash - conf->agent_pod);
    return strlen(pod.namespace) == len && !memcmp(pod.namespace, conf->agent_pod, len) &&
           !strncmp(pod.name, slash + 1, strlen(slash + 1));
}

/* ---- the agent ----------------------------------------------------------------------------------------- */

enum outcome { ANSWERED, UNREACHED, BROKEN, AWAY }; /* only UNREACHED and BROKEN are worth another try */

struct reply {
    unsigned exit_code;
    struct slice body;
};

static void put_u32(char *to, size_t value)
{
    for (int i = 0; i < 4; i++, value >>= 8) to[i] = (char)(value & 0xff);
}

static unsigned get_u32(const char *from)
{
    unsigned value = 0;
    for (int i = 4; i--;) value = value << 8 | (unsigned char)from[i];
    return value;
}

static enum outcome because(const char *what, const char *detail, enum outcome outcome)
{
    compose(&reason, what, detail, NULL);
    return outcome;
}

static bool is_object(struct slice text)
{
    struct scanner s = {text.at, text.at + text.len, NULL};
    struct slice members[KEYS];
    return scan_members(&s, members);
}

/* BROKEN while more is to come; AWAY, with the reason, for what is no answer of an agent. */
static enum outcome read_reply(const char *bytes, size_t len, struct reply *reply)
{
    const char *wrong = NULL;
    if (memcmp(bytes, magic, len < MAGIC ? len : MAGIC) != 0) {
        wrong = "it does not begin with the magic bytes";
    } else if (len >= HEADER) {
        *reply = (struct reply){get_u32(bytes + MAGIC), {bytes + HEADER, get_u32(bytes + MAGIC + 4)}};
        if (reply->exit_code > 1) wrong = "its exit code is neither 0 nor 1";
        else if (reply->body.len > MAX_BODY) wrong = "its body is longer than 64 KiB";
        else if (!reply->exit_code && reply->body.len) wrong = "it has a body beside exit code 0";
        else if (len > HEADER + reply->body.len) wrong = "more follows its body";
        else if (len < HEADER + reply->body.len) return BROKEN;
        else if (reply->exit_code && !is_object(reply->body)) wrong = "its body is not a JSON object";
        else return ANSWERED;
    }
    return wrong ? because("the answer is not one of an agent: ", wrong, AWAY) : BROKEN;
}

static enum outcome silent(void) { return because("no answer in time", NULL, AWAY); }

static enum outcome broken(const char *how)
{
    return because("the connection broke before a whole answer came: ", how, BROKEN);
}

static enum outcome send_frame(int fd, size_t len, long long deadline)
{
    for (size_t sent = 0; sent < len;) {
        ssize_t n = send(fd, frame + sent, len - sent, MSG_NOSIGNAL);
        if (n >= 0) sent += (size_t)n;
        else if (!passing(errno)) return broken(strerror(errno));
        else if (!await(fd, POLLOUT, deadline)) return silent();
    }
    return ANSWERED;
}

static enum outcome receive_reply(int fd, long long deadline, struct reply *reply)
{
    enum outcome outcome = BROKEN;
    for (size_t len = 0; outcome == BROKEN;) {
        if (!await(fd, POLLIN, deadline)) return silent();
        ssize_t n = recv(fd, answer + len, sizeof answer - len, 0);
        if (n < 0 && passing(errno)) continue;
        if (n <= 0) return broken(n ? strerror(errno) : "the agent closed it");
        len += (size_t)n;
        outcome = read_reply(answer, len, reply);
    }
    return outcome;
}

/* A unix socket connects at once or not at all. Its credentials are those of the process that listens. */
static enum outcome talk(int fd, const char *path, size_t len, long long deadline, struct reply *reply)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof peer;
    strcpy(address.sun_path, path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
        return because("cannot connect: ", strerror(errno), UNREACHED);
    if (peer.uid) return because("it does not belong to root but to uid ", decimal(peer.uid), AWAY);
    enum outcome outcome = send_frame(fd, len, deadline);
    return outcome == ANSWERED ? receive_reply(fd, deadline, reply) : outcome;
}

static enum outcome converse(const char *path, size_t len, long long deadline, struct reply *reply)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return because("cannot make a socket: ", strerror(errno), UNREACHED);
    enum outcome outcome = talk(fd, path, len, deadline, reply);
    close(fd);
    return outcome;
}

/* One conversation, begun anew while an agent may just be restarting: every verb may be repeated. */
static enum outcome ask(const struct verb *verb, const char *path, size_t len, long long deadline,
                        struct reply *reply)
{
    long long give_up = now() + verb->window;
    for (bool broke = false;;) {
        long long begun = now();
        enum outcome outcome = converse(path, len, deadline, reply);
        if (outcome == ANSWERED || outcome == AWAY) return outcome;
        /* A break opens the window anew, except for an agent that hangs up again and again. */
        if (outcome == BROKEN && (!broke || now() - begun > verb->window)) {
            give_up = now() + verb->window;
            broke = true;
        }
        if (now() + RETRY_MS > (give_up < deadline ? give_up : deadline)) return AWAY;
        poll(NULL, 0, RETRY_MS);
    }
}

/* ---- the verbs ----------------------------------------------------------------------------------------- */

/* Exit code 1, with the error object of `message` and `details` on stdout. */
static int fail(const struct conf *conf, enum code code)
{
    const char *version = supported(conf->version) ? conf->version : NEWEST_VERSION;
    compose(&output, "{\"cniVersion\":\"", version, "\",\"code\":", decimal(code), ",\"msg\":", NULL);
    put_json(&output, message.bytes);
    if (details.len) {
        put(&output, ",\"details\":", 11);
        put_json(&output, details.bytes);
    }
    put(&output, "}", 1);
    print(output.bytes, output.len);
    return 1;
}

static int print_versions(const struct conf *conf)
{
    const char *version = supported(conf->version) ? conf->version : NEWEST_VERSION;
    compose(&output, "{\"cniVersion\":\"", version, "\",\"supportedVersions\":", NULL);
    put_versions(&output);
    put(&output, "}", 1);
    return print(output.bytes, output.len);
}

static int succeed(const struct verb *verb, const struct conf *conf)
{
    struct slice result = conf->raw[PREV_RESULT];
    if (verb->id != ADD) return 0;
    if (result.at) return print(result.at, result.len);
    compose(&output, "{\"cniVersion\":\"", *conf->version ? conf->version : UNVERSIONED, "\"}", NULL);
    return print(output.bytes, output.len);
}

/* What becomes of the verb when nobody answers on the socket, for `reason`. */
static int without_agent(const struct verb *verb, const struct conf *conf, struct pod pod)
{
    bool denied = conf->deny && (verb->id == STATUS || (verb->id == ADD && !exempt(conf, pod)));
    if (!denied) {
        compose(&message, subject.bytes, ": passed without the agent: ", conf->socket, ": ", reason.bytes,
                NULL);
        note(verb->name, message.bytes);
        return succeed(verb, conf);
    }
    compose(&message, subject.bytes, ": agent not reachable on ", conf->socket, NULL);
    compose(&details, reason.bytes, "; whenAgentAway is deny: see that the pointsman agent runs on this ",
            "node, or exempt the namespace, or set whenAgentAway to allow", NULL);
    return fail(conf, verb->id == ADD ? TRY_AGAIN_LATER : NOT_AVAILABLE);
}

/* Copies our variables behind the header; their length, or MAX_ENV + 1 when they are longer than allowed. */
static size_t collect_env(void)
{
    size_t len = 0;
    for (size_t i = 0; i < COUNT(variables); i++) {
        const char *value = getenv(variables[i]);
        if (!value) continue;
        size_t name_len = strlen(variables[i]), value_len = strlen(value);
        if (len + name_len + value_len + 2 > MAX_ENV) return MAX_ENV + 1;
        char *to = frame + HEADER + len;
        memcpy(to, variables[i], name_len);
        to[name_len] = '=';
        memcpy(to + name_len + 1, value, value_len + 1);
        len += name_len + value_len + 2;
    }
    return len;
}

static enum code check_env(const struct verb *verb, size_t env_len)
{
    if (env_len > MAX_ENV) {
        compose(&message, "invalid environment: the CNI_ variables are longer than 64 KiB", NULL);
        return INVALID_ENVIRONMENT;
    }
    for (size_t i = 0; i < COUNT(verb->needs) && verb->needs[i]; i++) {
        const char *value = getenv(verb->needs[i]);
        if (value && *value) continue;
        compose(&message, "invalid environment: ", verb->name, " needs ", verb->needs[i], NULL);
        return INVALID_ENVIRONMENT;
    }
    return FINE;
}

/* Reads stdin to its end; `text` holds what came, nothing when it was too long. */
static enum code read_stdin(struct slice *text, long long deadline)
{
    char *to = (char *)text->at;
    while (text->len <= MAX_STDIN) {
        ssize_t n = await(0, POLLIN, deadline) ? read(0, to + text->len, MAX_STDIN + 1 - text->len) : -1;
        if (n < 0 && passing(errno)) continue;
        if (n < 0) {
            compose(&message, "cannot read the configuration on stdin to its end: ", strerror(errno), NULL);
            return IO_FAILURE;
        }
        if (n == 0) return FINE;
        text->len += (size_t)n;
    }
    text->len = 0;
    return undecodable("it is longer than 1 MiB", MAX_STDIN);
}

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; name && i < COUNT(verbs); i++)
        if (!strcmp(name, verbs[i].name)) return &verbs[i];
    return NULL;
}

/* Whether the verb may go to the agent: FINE, or what is wrong with its environment and configuration. What
   removes goes on with what can be read, and so do pods that nothing of ours may hold up. */
static enum code admit(const struct verb *verb, struct conf *conf, struct pod pod, size_t env_len)
{
    bool removes = verb->id == DEL || verb->id == GC;
    enum code code = removes ? FINE : check_version(conf);
    if (!code) code = check_env(verb, env_len);
    if (code) return code;
    code = read_settings(conf);
    if (!code || !(removes || (verb->id == ADD && exempt(conf, pod)))) return code;
    note(verb->name, message.bytes);
    return FINE;
}

static void name_subject(struct pod pod)
{
    const char *container = getenv("CNI_CONTAINERID");
    if (*pod.name) compose(&subject, "pod ", pod.namespace, "/", pod.name, NULL);
    else if (container) compose(&subject, "container ", container, NULL);
    else compose(&subject, "node", NULL);
}

int main(void)
{
    const struct verb *verb = find_verb(getenv("CNI_COMMAND"));
    struct conf conf = {.socket = DEFAULT_SOCKET};
    signal(SIGPIPE, SIG_IGN);
    if (!verb) {
        compose(&message, "invalid environment: CNI_COMMAND must be ADD, DEL, CHECK, STATUS, GC or VERSION",
                NULL);
        return fail(&conf, INVALID_ENVIRONMENT);
    }
    long long deadline = now() + verb->deadline;
    size_t env_len = collect_env();
    struct slice text = {frame + HEADER + (env_len > MAX_ENV ? 0 : env_len), 0};
    enum code unreadable = read_stdin(&text, deadline);
    if (!unreadable) unreadable = decode_conf(text, &conf);
    if (verb->id == VERSION) return print_versions(&conf);
    if (unreadable && verb->id != DEL && verb->id != GC) return fail(&conf, unreadable);
    if (unreadable) note(verb->name, message.bytes);

    struct pod pod = read_pod();
    name_subject(pod);
    enum code code = admit(verb, &conf, pod, env_len);
    if (code) return fail(&conf, code);

    struct reply reply;
    memcpy(frame, magic, MAGIC);
    put_u32(frame + MAGIC, env_len);
    put_u32(frame + MAGIC + 4, text.len);
    if (ask(verb, conf.socket, HEADER + env_len + text.len, deadline, &reply) != ANSWERED)
        return without_agent(verb, &conf, pod);
    if (!reply.exit_code) return succeed(verb, &conf);
    if (unreadable) return 0; /* a removal never fails for its configuration */
    print(reply.body.at, reply.body.len);
    return 1;
}
