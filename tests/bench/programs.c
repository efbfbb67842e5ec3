/* What the shim is held against: a static program that does nothing, and, with RULE, one that enters the
 * network namespace in CNI_NETNS and execs iptables for a single rule. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
#ifdef RULE
    int netns = open(getenv("CNI_NETNS"), O_RDONLY);
    if (netns < 0 || setns(netns, CLONE_NEWNET)) return 1;
    execlp("iptables", "iptables", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-j", "REDIRECT", "--to-ports",
           "4140", (char *)0);
    return 2;
#else
    return 0;
#endif
}
