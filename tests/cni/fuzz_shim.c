/*
 * Fuzz target of the shim's readers: the configuration, CNI_ARGS and the agent's answer.
 *
 * With -fsanitize=fuzzer it is a target of libFuzzer. Else it brings a plain driver of its own:
 *   fuzz_shim SECONDS SEED-FILE...
 * which changes seeds at random, and ends with the first that a sanitizer or a check does not like.
 */
#define main shim_main
#include "../../agent/cni/shim.c"
#undef main
#include <stdio.h>

#define CHECK_THAT(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

/* What was found lies inside `text`, and is one whole value of its kind. */
static void check_slice(struct slice found, struct slice text)
{
    if (!found.at) return;
    struct scanner s = {found.at, found.at + found.len, NULL};
    CHECK_THAT(found.at >= text.at && found.at + found.len <= text.at + text.len);
    CHECK_THAT(skip_value(&s) && s.at == s.end);
}

static void check_message(void)
{
    output.len = 0;
    put_json(&output, message.bytes);
    struct scanner s = {output.bytes, output.bytes + output.len, NULL};
    CHECK_THAT(skip_string(&s) && s.at == s.end);
}

static void read_conf(struct slice text)
{
    struct conf conf = {.socket = DEFAULT_SOCKET};
    struct pod pods[] = {{"default", "web"}, {"kube-system", "coredns"}, {"linkerd-cni", "linkerd-cni-x"}};
    enum code code = decode_conf(text, &conf);
    CHECK_THAT(code == FINE || code == DECODING_FAILURE);
    for (size_t i = 0; i < KEYS; i++) check_slice(conf.raw[i], text);
    if (code) {
        check_message();
        return;
    }
    check_version(&conf);
    code = read_settings(&conf);
    CHECK_THAT(code == FINE || code == INVALID_CONFIG);
    CHECK_THAT(*conf.socket == '/' && strlen(conf.socket) < sizeof conf.socket);
    CHECK_THAT(strlen(conf.version) < sizeof conf.version && strlen(conf.agent_pod) < sizeof conf.agent_pod);
    for (size_t i = 0; i < COUNT(pods); i++) exempt(&conf, pods[i]);
    check_message();
}

/* An answer that comes in pieces is read as the whole one is, and only the whole one is an answer. */
static void read_answer(struct slice text)
{
    for (size_t len = 0; len <= text.len; len++) {
        struct reply reply = {0, {NULL, 0}};
        enum outcome outcome = read_reply(text.at, len, &reply);
        CHECK_THAT(outcome == ANSWERED || outcome == BROKEN || outcome == AWAY);
        if (outcome == AWAY) return;
        if (outcome == BROKEN) continue;
        CHECK_THAT(len == HEADER + reply.body.len && reply.exit_code <= 1);
        CHECK_THAT(reply.exit_code ? is_object(reply.body) : !reply.body.len);
    }
}

static void read_args(struct slice text)
{
    static char args[MAX_ENV];
    size_t len = text.len < sizeof args - 1 ? text.len : sizeof args - 1;
    memcpy(args, text.at, len);
    args[len] = 0;
    setenv("CNI_ARGS", args, 1);
    struct pod pod = read_pod();
    CHECK_THAT(*pod.namespace);
    CHECK_THAT(strlen(pod.name) < sizeof args && !strchr(pod.name, ';'));
    name_subject(pod);
    compose(&message, subject.bytes, NULL);
    check_message();
    unsetenv("CNI_ARGS");
}

/* The input is a copy of its own length, so that a sanitizer sees a read beyond it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const readers[])(struct slice) = {read_conf, read_answer, read_args};
    char *copy = malloc(size ? size : 1);
    if (!copy) return 0;
    if (size) memcpy(copy, data, size);
    for (size_t i = 0; i < COUNT(readers); i++) readers[i]((struct slice){copy, size});
    free(copy);
    return 0;
}

#ifdef DRIVER
enum { LONGEST = 8192 };

static uint64_t dice(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t change(uint8_t *data, size_t size)
{
    static const char likely[] = "{}[]\":,\\u0eE+-.tfn \n\t\x80\xff";
    size_t at = size ? dice() % size : 0, len = size - at, some = len ? 1 + dice() % (len < 16 ? len : 16) : 0;
    switch (dice() % 5) {
    case 0: /* another byte */
        if (size) data[at] = (uint8_t)dice();
        return size;
    case 1: /* a likely byte */
        if (size) data[at] = (uint8_t)likely[dice() % (sizeof likely - 1)];
        return size;
    case 2: /* without a piece */
        memmove(data + at, data + at + some, len - some);
        return size - some;
    case 3: /* a piece twice */
        if (size + some > LONGEST) return size;
        memmove(data + at + some, data + at, len);
        return size + some;
    }
    return at; /* the beginning alone */
}

int main(int argc, char **argv)
{
    static uint8_t seeds[64][LONGEST], data[LONGEST];
    size_t sizes[64], count = 0;
    for (int i = 2; i < argc && count < COUNT(sizes); i++) {
        FILE *file = fopen(argv[i], "rb");
        CHECK_THAT(file);
        sizes[count] = fread(seeds[count], 1, LONGEST, file);
        count++;
        fclose(file);
    }
    CHECK_THAT(count);
    unsigned long runs = 0;
    for (long long until = now() + atoi(argv[1]) * 1000LL; now() < until; runs++) {
        size_t seed = dice() % count, size = sizes[seed];
        memcpy(data, seeds[seed], size);
        for (size_t changes = runs < count ? 0 : 1 + dice() % 8; changes--;) size = change(data, size);
        LLVMFuzzerTestOneInput(data, size);
    }
    fprintf(stderr, "%lu inputs\n", runs);
    return 0;
}
#endif
