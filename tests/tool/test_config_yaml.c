/* YAML text is hostile: whatever it holds, it is a tree with places, or one line and an end. */
#include "support/captured_log.h"
#include "tool/config_yaml.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static captured_log said;

static void begin(void)
{
    captured_log_begin(&said);
}

TestSuite(config_yaml, .init = begin);

static ra_yaml parse(const char *text)
{
    ra_yaml yaml = {0};
    cr_assert_eq(ra_yaml_init("a.yaml", true, text, strlen(text), &yaml), RA_OK, "%s", said.line);
    return yaml;
}

static void refuses(const char *text, size_t bytes, const char *wanted)
{
    ra_yaml yaml = {0};
    said.count = 0;
    cr_assert_eq(ra_yaml_init("a.yaml", true, text, bytes, &yaml), RA_ERR_CONFIG);
    cr_assert_eq(said.count, 1);
    cr_assert_not_null(strstr(said.line, wanted), "'%s' does not say '%s'", said.line, wanted);
}

/* `count` times `piece`, between head and tail; freed by the caller. */
static char *repeat(const char *head, const char *piece, size_t count, const char *tail)
{
    size_t const length = strlen(piece), head_bytes = strlen(head);
    char *text = malloc(head_bytes + count * length + strlen(tail) + 1);
    cr_assert_not_null(text);
    memcpy(text, head, head_bytes);
    for (size_t i = 0; i < count; i++)
        memcpy(text + head_bytes + i * length, piece, length);
    strcpy(text + head_bytes + count * length, tail);
    return text;
}

static void refuses_repeated(const char *head, const char *piece, size_t count, const char *tail)
{
    char *text = repeat(head, piece, count, tail);
    refuses(text, strlen(text), "a.yaml:");
    free(text);
}

static void accepts_repeated(const char *head, const char *piece, size_t count, const char *tail)
{
    char *text = repeat(head, piece, count, tail);
    ra_yaml yaml = parse(text);
    ra_yaml_fini(&yaml);
    free(text);
}

Test(config_yaml, knows_where_everything_stood)
{
    ra_yaml yaml = parse("# first\na:\n  b: [1, x]\n  'c d': \"q\"\n");
    const ra_yaml_node *a = yaml.root->first, *b = a->first, *c = b->next;
    cr_assert_eq(yaml.root->kind, RA_YAML_MAPPING);
    cr_assert_str_eq(a->key, "a");
    cr_assert_eq(a->key_line, 2);
    cr_assert_str_eq(b->key, "b");
    cr_assert_eq(b->kind, RA_YAML_SEQUENCE);
    cr_assert_eq(b->key_line, 3);
    cr_assert_eq(b->key_column, 3);
    cr_assert_str_eq(b->first->next->text, "x");
    cr_assert_eq(b->first->next->column, 10);
    cr_assert_str_eq(c->key, "c d");
    cr_assert_str_eq(c->text, "q");
    cr_assert_null(c->next);
    ra_yaml_fini(&yaml);
    yaml = parse("x: 1\n  \ny:\n\nz: 1\n"); /* what is not there, where its key stands */
    cr_assert_eq(yaml.root->first->next->kind, RA_YAML_NULL);
    cr_assert_eq(yaml.root->first->next->line, 3);
    cr_assert_eq(yaml.root->first->next->column, 1);
    ra_yaml_fini(&yaml);
}

Test(config_yaml, tells_nothing_from_the_text_null)
{
    ra_yaml yaml = parse("[~, null, 'null', \"\", Null]");
    ra_yaml_kind const kinds[] = {RA_YAML_NULL, RA_YAML_NULL, RA_YAML_SCALAR, RA_YAML_SCALAR,
                                  RA_YAML_SCALAR};
    const ra_yaml_node *node = yaml.root->first;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++, node = node->next)
        cr_assert_eq(node->kind, kinds[i], "entry %zu", i);
    cr_assert_null(node);
    ra_yaml_fini(&yaml);
    yaml = parse("# nothing but this\n");
    cr_assert_eq(yaml.root->kind, RA_YAML_NULL);
    ra_yaml_fini(&yaml);
}

/* Lines and columns from 1; what the text lacks is missing at its end. */
Test(config_yaml, says_where_the_syntax_is_wrong)
{
    static const struct {
        const char *text, *place;
    } cases[] = {
        {"shape:\n  seq: 16\n\theads: 2\n", "a.yaml:3:2: not valid YAML"},
        {"shape: {seq: 16", "a.yaml:1:16: not valid YAML"},
        {"shape: {seq: 16\n", "a.yaml:1:16: not valid YAML"},
        {"shape: }\n", "a.yaml:1:8: not valid YAML"},
        {"shape:\n  seq: 16\n heads: 2\n", "a.yaml:3:2: not valid YAML"},
        {"shape:\n  seq: \"16\n  heads: 2\n", "a.yaml:2:8: not valid YAML"},
        {"a: b: c\n", "a.yaml:1:5: not valid YAML"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        refuses(cases[i].text, strlen(cases[i].text), cases[i].place);
}

Test(config_yaml, refuses_what_it_does_not_read)
{
    refuses("a: &x 1\nb: *x\n", 14, "aliases");
    refuses("a: &x 1\n*x : 2\n", 15, "aliases");
    refuses("a: !!int 1\n", 11, "tags");
    refuses("a: !x [1]\n", 10, "tags");
    refuses("--- 1\n--- 2\n", 12, "second document");
    refuses("[a]: 1\n", 7, "a.yaml:1:");
    refuses("{a: 1, a: 2}\n", 13, "duplicate key 'a'");
    refuses("a:\n  1\na: 2\n", 12, "a.yaml:3:1: duplicate key 'a' (first in line 1)");
    refuses("a: \"\\0\"\n", 8, "control characters");
    refuses("a: \"\\ud800\"\n", 12, "UTF8");
    refuses("a: 1\0b: 2\n", 10, "a.yaml:1:5: this is a control character");
    refuses("a: \x7f\n", 5, "a.yaml:1:4: this is a control character");
    refuses(": 1\n", 4, "a.yaml:1:1: a key has no name");
    refuses("a: {\"\": 1}\n", 11, "a.yaml:1:6: a key has no name");
    refuses("a: \xc2\x9b\n", 6, "a.yaml:1:4: this is not UTF-8 text, or a control character");
    refuses("a: \"\\x9b\"\n", 10, "control characters");
    refuses("a: \"\\ufffe\"\n", 12, "control characters");
    refuses("\"a\\tb\": 1\n", 10, "control characters");
    refuses("a: |\n  b\n  c\n", 13, "control characters");
    refuses("a: \xff\n", 5, "a.yaml:1:4: this is not UTF-8");
    refuses("a: \xe2\x82", 5, "not UTF-8"); /* cut off */
    refuses("\x7f"
            "ELF",
            4, "is it a YAML file?");
    refuses("a: [1\n", 6, "YAML");
    refuses("a: 'x\n", 6, "YAML");
    refuses("a:\n\t- 1\n", 8, "YAML");
    refuses("%YAML 1.2\n---\na: 1\n", 19, "a.yaml:1:1: a line begins with %");
    refuses("a: 1\n...\n%TAG ! x\n", 18, "a.yaml:3:1: a line begins with %");
    refuses("\xef\xbb\xbf%YAML 1.2\n", 13, "begins with %");
    refuses("a: 1\r%TAG ! x\r", 14, "begins with %");
    refuses("%,\xe0\x94\x97", 5, "not UTF-8");    /* libfyaml would never return */
    refuses("a: \xc0\x80\n", 6, "not UTF-8");     /* longer than needed */
    refuses("a: \xed\xa0\x80\n", 7, "not UTF-8"); /* half of a pair */
    refuses("a: \xf4\x90\x80\x80\n", 8, "a.yaml:1:4: this is not UTF-8"); /* past the last one */
}

Test(config_yaml, bounds_depth_width_and_number)
{
    refuses_repeated("", "[", 9, "");
    refuses_repeated("", "[", 100000, "");
    refuses_repeated("", "{a: ", 100000, "");
    refuses_repeated("", "- ", 100000, "1\n");
    refuses_repeated("", "? ", 100000, "1\n");
    refuses_repeated("a: [", "1,", RA_YAML_NODES_MAX - 2, "1]");
    accepts_repeated("", "[", RA_YAML_DEPTH_MAX, "]]]]]]]]");
    accepts_repeated("a: [", "1,", RA_YAML_NODES_MAX - 3, "1]"); /* the map and the list count */
    char wide[RA_YAML_MEMBERS_MAX * 12 + 64] = "";
    for (int i = 0; i < RA_YAML_MEMBERS_MAX; i++)
        snprintf(wide + strlen(wide), sizeof(wide) - strlen(wide), "key%d: 1\n", i);
    accepts_repeated(wide, "", 0, "");
    strcat(wide, "more: 1\n");
    refuses(wide, strlen(wide), "too many keys");
}

Test(config_yaml, takes_a_long_list_and_a_long_text)
{
    char *text = repeat("a: [", "7, ", 100000, "8]");
    ra_yaml yaml = parse(text);
    int count = 0;
    for (const ra_yaml_node *node = yaml.root->first->first; node != NULL; node = node->next)
        count++;
    cr_assert_eq(count, 100001);
    ra_yaml_fini(&yaml);
    free(text);
    text = repeat("a: ", "x", 200000, "\n");
    yaml = parse(text);
    cr_assert_eq(strlen(yaml.root->first->text), 200000);
    ra_yaml_fini(&yaml);
    free(text);
}

Test(config_yaml, shows_text_without_control_characters)
{
    char shown[48];
    cr_assert_str_eq(ra_text_shown("plain", shown), "plain");
    cr_assert_str_eq(ra_text_shown("a\nb\x1b", shown), "a?b?");
    cr_assert_str_eq(ra_text_shown("0123456789012345678901234567890123456789", shown),
                     "0123456789012345678901234567890123456789");
    cr_assert_str_eq(ra_text_shown("01234567890123456789012345678901234567890", shown),
                     "0123456789012345678901234567890123456789...");
    cr_assert_str_eq(ra_text_shown("012345678901234567890123456789012345678\xc3\xa9!", shown),
                     "012345678901234567890123456789012345678...", "half a character");
    cr_assert_str_eq(ra_text_shown("01234567890123456789012345678901234567\xc3\xa9!", shown),
                     "01234567890123456789012345678901234567\xc3\xa9...");
}

Test(config_yaml, mends_text_that_was_cut)
{
    static const char *const texts[][2] = {{"", ""},
                                           {"caf\xc3\xa9", "caf\xc3\xa9"},
                                           {"caf\xc3", "caf?"},
                                           {"\xe2\x82:1", "??:1"},
                                           {"\xa9\x1b", "??"},
                                           {"a\xef\xbf\xbe\xc2\x9b", "a?????"}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char text[16];
        strcpy(text, texts[i][0]);
        ra_text_mend(text);
        cr_expect_str_eq(text, texts[i][1]);
    }
}
