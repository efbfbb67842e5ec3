"""nf_tables by replay: a text is compiled once, the kernel's own dump of it is what every pod gets.

`wire` frames netlink, `records` says what of a dump is content, `batch` turns records into one
transaction, `channel` is the netlink socket, `socket` reads and commits through it, `foreign` looks
at the rules of others, `difference` puts drift into words, `compile` and its child `scratch` turn
a text into records, `datapath` keeps one table in one pod as it should be.
"""
