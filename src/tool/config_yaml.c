#include "config_yaml.h"

#include "internal.h"

#include <libfyaml.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 << 10 };

typedef struct ra_yaml_chunk {
    struct ra_yaml_chunk *next;
    size_t used, size;
    alignas(max_align_t) unsigned char data[];
} ra_yaml_chunk;

/* An open mapping or sequence. */
typedef struct frame {
    ra_yaml_node *node, *last;
    int members;
    bool wants_value; /* in a mapping, after a key */
    const char *key;
    int key_line, key_column;
} frame;

typedef struct builder {
    ra_yaml *yaml;
    frame frames[RA_YAML_DEPTH_MAX];
    int depth;
    int nodes, documents;
    int line, column; /* of the event at hand */
} builder;

static void *chunk_take(ra_yaml *yaml, size_t bytes)
{
    bytes = ra_round_up(bytes, alignof(max_align_t));
    if (yaml->chunks == NULL || yaml->chunks->size - yaml->chunks->used < bytes) {
        size_t const size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        ra_yaml_chunk *chunk = malloc(sizeof(*chunk) + size);
        if (chunk == NULL) {
            (void)ra_refuse_memory(yaml->name);
            return NULL;
        }
        *chunk = (ra_yaml_chunk){.next = yaml->chunks, .size = size};
        yaml->chunks = chunk;
    }
    void *taken = yaml->chunks->data + yaml->chunks->used;
    yaml->chunks->used += bytes;
    return taken;
}

void ra_yaml_place(const ra_yaml *yaml, int line, int column, char place[RA_YAML_PLACE_MAX])
{
    if (yaml->has_lines)
        snprintf(place, RA_YAML_PLACE_MAX, "%.600s:%d:%d", yaml->name, line, column);
    else
        snprintf(place, RA_YAML_PLACE_MAX, "%.600s", yaml->name);
}

ra_status ra_yaml_refuse(const ra_yaml *yaml, int line, int column, const char *format, ...)
{
    char place[RA_YAML_PLACE_MAX], what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    ra_yaml_place(yaml, line, column, place);
    ra_log(RA_LOG_ERROR, "%s: %s", place, what);
    return RA_ERR_CONFIG;
}

static ra_status refuse(const builder *b, const char *what)
{
    (void)ra_yaml_refuse(b->yaml, b->line, b->column, "%s", what);
    return RA_ERR_CONFIG; /* so that who analyses callers sees what it returns */
}

static ra_status text_check(builder *b, const char *text, size_t bytes)
{
    size_t bad = ra_text_invalid_at(text, bytes);
    const char *what = bad < bytes && (unsigned char)text[bad] < 0x80
                           ? "this is a control character: is it a YAML file?"
                           : "this is not UTF-8 text, or a control character: is it a YAML file?";
    if (bad == bytes) {
        what = "a line begins with %: YAML directives are not read";
        bad = ra_text_directive_at(text, bytes);
    }
    if (bad == bytes)
        return RA_OK;
    size_t line_begin = 0;
    for (size_t at = 0; at < bad; at++) {
        if (text[at] == '\n') {
            b->line++;
            line_begin = at + 1;
        }
    }
    b->column = (int)(bad - line_begin) + 1;
    return refuse(b, what);
}

/* Copy a token's text; refuse what escapes must not produce: NUL, control, half characters. */
static ra_status text_copy(const builder *b, struct fy_token *token, const char **text_out)
{
    size_t bytes = 0;
    const char *text = token != NULL ? fy_token_get_text(token, &bytes) : "";
    if (text == NULL)
        return refuse(b, "this text cannot be read");
    if (!ra_text_is_line(text, bytes))
        return refuse(b, "text must not hold control characters or broken UTF-8");
    char *copy = chunk_take(b->yaml, bytes + 1);
    if (copy == NULL)
        return RA_ERR_NO_MEMORY;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    *text_out = copy;
    return RA_OK;
}

static ra_status key_begin(builder *b, frame *top, struct fy_event *event)
{
    if (event->type != FYET_SCALAR)
        return refuse(b, "a key must be a plain name");
    const char *key = NULL;
    ra_status const status = text_copy(b, event->scalar.value, &key);
    if (status != RA_OK)
        return status;
    if (key[0] == '\0')
        return refuse(b, "a key has no name");
    if (++top->members > RA_YAML_MEMBERS_MAX)
        return refuse(b, "too many keys in one place");
    for (const ra_yaml_node *other = top->node->first; other != NULL; other = other->next) {
        if (strcmp(other->key, key) == 0) {
            char what[128], shown[48];
            snprintf(what, sizeof(what), "duplicate key '%s' (first in line %d)",
                     ra_text_shown(key, shown), other->key_line);
            return refuse(b, what);
        }
    }
    top->wants_value = true;
    top->key = key;
    top->key_line = b->line;
    top->key_column = b->column;
    return RA_OK;
}

/* Add a node at the document's current place. */
static ra_status node_add(builder *b, ra_yaml_kind kind, ra_yaml_node **node_out)
{
    if (++b->nodes > RA_YAML_NODES_MAX)
        return refuse(b, "more than 1048576 values");
    ra_yaml_node *node = chunk_take(b->yaml, sizeof(*node));
    if (node == NULL)
        return RA_ERR_NO_MEMORY;
    *node = (ra_yaml_node){.kind = kind, .line = b->line, .column = b->column};
    if (b->depth == 0) {
        b->yaml->root = node;
    } else {
        frame *top = &b->frames[b->depth - 1];
        if (top->node->kind == RA_YAML_MAPPING) {
            node->key = top->key;
            node->key_line = top->key_line;
            node->key_column = top->key_column;
            top->wants_value = false;
        }
        if (top->last == NULL)
            top->node->first = node;
        else
            top->last->next = node;
        top->last = node;
    }
    *node_out = node;
    return RA_OK;
}

static ra_status scalar_add(builder *b, struct fy_event *event)
{
    const char *text = NULL;
    ra_yaml_node *node = NULL;
    ra_status status = text_copy(b, event->scalar.value, &text);
    if (status == RA_OK)
        status = node_add(b, RA_YAML_SCALAR, &node);
    if (status != RA_OK)
        return status;
    bool const plain =
        event->scalar.value == NULL || fy_token_scalar_style(event->scalar.value) == FYSS_PLAIN;
    bool const nothing =
        plain && (text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
    if (nothing)
        node->kind = RA_YAML_NULL;
    else
        node->text = text;
    if (plain && text[0] == '\0' && node->key != NULL) {
        node->line = node->key_line; /* where it would be depends on libfyaml's release */
        node->column = node->key_column;
    }
    return RA_OK;
}

static ra_status container_open(builder *b, ra_yaml_kind kind)
{
    ra_yaml_node *node = NULL;
    if (b->depth == RA_YAML_DEPTH_MAX)
        return refuse(b, "nested too deeply");
    ra_status const status = node_add(b, kind, &node);
    if (status == RA_OK)
        b->frames[b->depth++] = (frame){.node = node};
    return status;
}

static bool event_has_tag(const struct fy_event *event)
{
    switch (event->type) {
    case FYET_SCALAR:
        return event->scalar.tag != NULL;
    case FYET_SEQUENCE_START:
        return event->sequence_start.tag != NULL;
    case FYET_MAPPING_START:
        return event->mapping_start.tag != NULL;
    default:
        return false;
    }
}

static ra_status event_take(builder *b, struct fy_event *event)
{
    const struct fy_mark *mark = fy_event_start_mark(event);
    if (mark != NULL) {
        b->line = mark->line + 1;
        b->column = mark->column + 1;
    }
    if (event_has_tag(event))
        return refuse(b, "tags (!name) have no meaning here");
    if (b->depth > 0 && event->type != FYET_MAPPING_END && event->type != FYET_ALIAS) {
        frame *top = &b->frames[b->depth - 1];
        if (top->node->kind == RA_YAML_MAPPING && !top->wants_value)
            return key_begin(b, top, event);
    }
    switch (event->type) {
    case FYET_DOCUMENT_START:
        return b->documents++ == 0 ? RA_OK : refuse(b, "a second document: only one is read");
    case FYET_MAPPING_START:
        return container_open(b, RA_YAML_MAPPING);
    case FYET_SEQUENCE_START:
        return container_open(b, RA_YAML_SEQUENCE);
    case FYET_MAPPING_END:
    case FYET_SEQUENCE_END:
        b->depth--;
        return RA_OK;
    case FYET_SCALAR:
        return scalar_add(b, event);
    case FYET_ALIAS:
        return refuse(b, "aliases (*name) are not read: write the value out");
    default:
        return RA_OK;
    }
}

/* Clip a place to the end of the text: the parser puts what is missing there beyond it. */
static void place_in_text(builder *b, const char *text, size_t bytes)
{
    int line = 1;
    size_t line_begin = 0;
    if (bytes > 0 && text[bytes - 1] == '\n')
        bytes--;
    for (size_t at = 0; at < bytes; at++) {
        if (text[at] == '\n') {
            line++;
            line_begin = at + 1;
        }
    }
    if (b->line > line) {
        b->line = line;
        b->column = (int)(bytes - line_begin) + 1;
    }
}

/* The parser's own complaint, as one line of ours. Unlike its marks it counts from 1 here. */
static ra_status refuse_syntax(builder *b, struct fy_diag *diag, const char *text, size_t bytes)
{
    void *iterator = NULL;
    const struct fy_diag_error *error = fy_diag_errors_iterate(diag, &iterator);
    char what[160] = "this is not valid YAML";
    if (error != NULL) {
        if (error->line >= 1 && error->column >= 1) {
            b->line = error->line;
            b->column = error->column;
            place_in_text(b, text, bytes);
        }
        snprintf(what, sizeof(what), "not valid YAML: %.120s", error->msg);
        for (char *c = what; *c != '\0'; c++) {
            if ((unsigned char)*c < 0x20)
                *c = ' ';
        }
    }
    return refuse(b, what);
}

static ra_status events_read(builder *b, struct fy_parser *parser, struct fy_diag *diag,
                             const char *text, size_t bytes)
{
    ra_status status = RA_OK;
    struct fy_event *event;
    while (status == RA_OK && (event = fy_parser_parse(parser)) != NULL) {
        status = event_take(b, event);
        fy_parser_event_free(parser, event);
    }
    if (status == RA_OK && (fy_parser_get_stream_error(parser) || b->depth != 0))
        status = refuse_syntax(b, diag, text, bytes);
    return status;
}

/* Drop what the library would print by itself: refuse_syntax reports everything. */
static void print_nothing(struct fy_diag *diag, void *user, const char *text, size_t bytes)
{
    (void)diag;
    (void)user;
    (void)text;
    (void)bytes;
}

static ra_status text_parse(builder *b, const char *text, size_t bytes)
{
    struct fy_diag_cfg diag_cfg;
    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL;
    diag_cfg.output_fn = print_nothing;
    struct fy_diag *diag = fy_diag_create(&diag_cfg);
    if (diag == NULL)
        goto err;
    fy_diag_set_collect_errors(diag, true);
    struct fy_parse_cfg const cfg = {.search_path = "", .flags = FYPCF_QUIET, .diag = diag};
    struct fy_parser *parser = fy_parser_create(&cfg);
    if (parser == NULL)
        goto err_destroy_diag;
    if (fy_parser_set_string(parser, text, bytes) != 0)
        goto err_destroy_parser;
    ra_status const status = events_read(b, parser, diag, text, bytes);
    fy_parser_destroy(parser);
    fy_diag_destroy(diag);
    return status;

err_destroy_parser:
    fy_parser_destroy(parser);
err_destroy_diag:
    fy_diag_destroy(diag);
err:
    return ra_refuse_memory(b->yaml->name);
}

ra_status ra_yaml_init(const char *name, bool has_lines, const char *text, size_t bytes,
                       ra_yaml *yaml_out)
{
    ra_yaml yaml = {.name = name, .has_lines = has_lines};
    builder b = {.yaml = &yaml, .line = 1, .column = 1};
    ra_status status = text_check(&b, text, bytes);
    if (status == RA_OK && bytes > 0)
        status = text_parse(&b, text, bytes);
    ra_yaml_node *nothing = NULL;
    if (status == RA_OK && yaml.root == NULL)
        status = node_add(&b, RA_YAML_NULL, &nothing);
    if (status != RA_OK) {
        ra_yaml_fini(&yaml);
        return status;
    }
    *yaml_out = yaml;
    return RA_OK;
}

void ra_yaml_fini(ra_yaml *yaml)
{
    while (yaml->chunks != NULL) {
        ra_yaml_chunk *next = yaml->chunks->next;
        free(yaml->chunks);
        yaml->chunks = next;
    }
    *yaml = (ra_yaml){0};
}
