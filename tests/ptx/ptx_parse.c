/* Reads a kernel as nvcc writes it. What is not known ends the process with file and line: then the
   interpreter has to learn it. */
#include "ptx/ptx_internal.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAMILIES_MAX = 16, NAME_MAX_BYTES = 512, LABELS_MAX = 1 << 16, DEPTH_MAX = 8 };

/* ".reg .b32 %r<88>": registers of a name and a number; ".reg .pred p": one without. */
typedef struct family {
    char name[8];
    int first, count;
} family;

typedef struct parser {
    const char *file, *at;
    int line;
    ptx_kernel *kernel;
    family families[FAMILIES_MAX];
    int family_count, code_room, constant_room;
    char param[NAME_MAX_BYTES];
    int *labels; /* [LABELS_MAX]: instructions; -1: none */
} parser;

_Noreturn static void refuse(const parser *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "ptx: %s:%d: ", p->file, p->line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

/* ---- words ----------------------------------------------------------------------------------- */

static void skip_spaces(parser *p)
{
    for (;; ++p->at) {
        if (p->at[0] == '/' && p->at[1] == '/')
            p->at += strcspn(p->at, "\n");
        if (*p->at == '\n')
            ++p->line;
        else if (*p->at == '\0' || !isspace((unsigned char)*p->at))
            return;
    }
}

static bool take(parser *p, const char *text)
{
    skip_spaces(p);
    size_t const length = strlen(text);
    if (strncmp(p->at, text, length) != 0)
        return false;
    p->at += length;
    return true;
}

static void expect(parser *p, const char *text)
{
    if (!take(p, text))
        refuse(p, "expected %s at \"%.20s\"", text, p->at);
}

/* Names of opcodes, registers, labels and symbols. */
static size_t word(parser *p, char out[NAME_MAX_BYTES])
{
    size_t length = 0;
    skip_spaces(p);
    while (isalnum((unsigned char)p->at[length]) ||
           (p->at[length] != '\0' && strchr("_$%.:", p->at[length]) != NULL))
        ++length;
    if (length == 0 || length >= NAME_MAX_BYTES)
        refuse(p, "expected a word at \"%.20s\"", p->at);
    memcpy(out, p->at, length);
    out[length] = '\0';
    p->at += length;
    return length;
}

static int number(parser *p)
{
    char *end;
    skip_spaces(p);
    long const value = strtol(p->at, &end, 10);
    if (end == p->at)
        refuse(p, "expected a number at \"%.20s\"", p->at);
    p->at = end;
    return (int)value;
}

/* ---- operands -------------------------------------------------------------------------------- */

/* A constant gets a register of its own, numbered from -1 down until all others are known. */
static int constant_of(parser *p, uint64_t bits)
{
    ptx_kernel *const k = p->kernel;
    for (int i = 0; i < k->constant_count; ++i)
        if (k->constants[i] == bits)
            return -1 - i;
    if (k->constant_count == p->constant_room) {
        p->constant_room = 2 * p->constant_room + 64;
        k->constants = realloc(k->constants, sizeof(uint64_t) * (size_t)p->constant_room);
        if (k->constants == NULL)
            refuse(p, "no memory");
    }
    k->constants[k->constant_count] = bits;
    return -1 - k->constant_count++;
}

/* The innermost one of that name; -1: none. */
static int find_register(const parser *p, const char *name)
{
    size_t const letters = strcspn(name, "0123456789");
    for (int i = p->family_count - 1; i >= 0; --i) {
        family const *const f = &p->families[i];
        if (strlen(f->name) != letters || strncmp(f->name, name, letters) != 0)
            continue;
        int const index = atoi(name + letters);
        if (index < f->count)
            return f->first + index;
    }
    return -1;
}

static int register_of(parser *p, const char *name)
{
    static const struct {
        const char *name;
        int row;
    } special[] = {{"%tid.x", PTX_TID},
                   {"%ntid.x", PTX_NTID},
                   {"%ctaid.x", PTX_CTAID},
                   {"%nctaid.x", PTX_NCTAID}};
    for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); ++i)
        if (strcmp(name, special[i].name) == 0)
            return special[i].row;
    int const found = find_register(p, name);
    if (found < 0)
        refuse(p, "unknown register %s", name);
    return found;
}

static int literal(parser *p)
{
    char *end;
    uint64_t bits;
    if (p->at[0] == '0' && (p->at[1] == 'f' || p->at[1] == 'F'))
        bits = strtoull(p->at + 2, &end, 16);
    else
        bits = (uint64_t)strtoll(p->at, &end, 0);
    if (end == p->at)
        refuse(p, "expected an operand at \"%.20s\"", p->at);
    p->at = end;
    return constant_of(p, bits);
}

/* A register, the kernel's parameter, shared memory (which begins at 0), or a number. */
static int operand(parser *p)
{
    char name[NAME_MAX_BYTES];
    skip_spaces(p);
    if (isdigit((unsigned char)*p->at) || *p->at == '-')
        return literal(p);
    (void)word(p, name);
    if (name[0] == '%')
        return register_of(p, name);
    if (strcmp(name, p->param) == 0)
        return PTX_PARAMS;
    if (strcmp(name, "shared") == 0)
        return constant_of(p, 0);
    int const found = find_register(p, name);
    if (found < 0)
        refuse(p, "unknown symbol %s", name);
    return found;
}

static void add_operand(parser *p, ptx_instruction *in)
{
    if (in->count == PTX_OPERANDS_MAX)
        refuse(p, "too many operands");
    in->operands[in->count++] = operand(p);
}

/* [register+offset] or [symbol+offset] */
static void address(parser *p, ptx_instruction *in)
{
    add_operand(p, in);
    skip_spaces(p);
    if (*p->at == '+') {
        ++p->at;
        in->offset = number(p);
        if (in->kind == PTX_COPY) /* which has two addresses */
            refuse(p, "unexpected offset");
    }
    expect(p, "]");
}

static void operands(parser *p, ptx_instruction *in)
{
    for (bool first = true; !take(p, ";"); first = false) {
        if (!first)
            expect(p, ",");
        if (take(p, "[")) {
            address(p, in);
        } else if (take(p, "{")) {
            do
                add_operand(p, in);
            while (take(p, ","));
            expect(p, "}");
        } else {
            add_operand(p, in);
            if (take(p, "|"))
                add_operand(p, in);
        }
        if (first)
            in->first = in->count;
    }
}

/* ---- instructions ---------------------------------------------------------------------------- */

/* ".shared.v2.f32", ".f32", ".param.u64": where, how many, of which type. */
static void access_of(parser *p, const char *suffix, ptx_instruction *in)
{
    static const struct {
        const char *name;
        int value;
    } spaces[] = {{".global", PTX_GLOBAL}, {".shared", PTX_SHARED}, {".param", PTX_PARAM}};
    in->space = PTX_GENERIC;
    in->vector = 1;
    for (int i = 0; i < 3; ++i)
        if (strncmp(suffix, spaces[i].name, strlen(spaces[i].name)) == 0) {
            in->space = (ptx_space)spaces[i].value;
            suffix += strlen(spaces[i].name);
        }
    if (suffix[0] == '.' && suffix[1] == 'v') {
        in->vector = suffix[2] - '0';
        suffix += 3;
    }
    if (suffix[0] != '.' || strchr("usfb", suffix[1]) == NULL || !isdigit((unsigned char)suffix[2]))
        refuse(p, "unknown access %s", suffix);
    in->bytes = atoi(suffix + 2) / 8;
    in->is_signed = suffix[1] == 's';
    in->is_float = suffix[1] == 'f';
}

static void describe(parser *p, const char *name, ptx_instruction *in)
{
    switch (in->kind) {
    case PTX_LOAD:
    case PTX_STORE:
        access_of(p, name + 2, in);
        break;
    case PTX_ADD:
        access_of(p, strstr(name, ".add") + 4, in);
        in->returns = name[0] == 'a';
        break;
    case PTX_MATRICES:
        in->turned = strstr(name, ".trans") != NULL;
        break;
    case PTX_SHUFFLE:
        in->indexed = strstr(name, ".idx.") != NULL;
        break;
    case PTX_BARRIER:
        in->arrives = strcmp(name, "bar.arrive") == 0;
        break;
    case PTX_REGISTERS:
        in->takes = strstr(name, ".inc.") != NULL;
        break;
    case PTX_GROUP_PRODUCT:
    case PTX_PRODUCT:
        in->half = strstr(name, ".f16.") != NULL;
        break;
    default:
        break;
    }
}

static ptx_instruction *new_instruction(parser *p)
{
    ptx_kernel *const k = p->kernel;
    if (k->length == p->code_room) {
        p->code_room = 2 * p->code_room + 1024;
        k->code = realloc(k->code, sizeof(*k->code) * (size_t)p->code_room);
        if (k->code == NULL)
            refuse(p, "no memory");
    }
    ptx_instruction *const in = &k->code[k->length++];
    *in = (ptx_instruction){.line = p->line, .guard = -1};
    return in;
}

/* "$L__BB0_18" is label 18 of the kernel. */
static int label_number(parser *p, const char *name)
{
    const char *const last = strrchr(name, '_');
    int const n = last == NULL ? -1 : atoi(last + 1);
    if (name[0] != '$' || n < 0 || n >= LABELS_MAX)
        refuse(p, "unknown label %s", name);
    return n;
}

static void statement(parser *p)
{
    char name[NAME_MAX_BYTES];
    bool unless = false;
    int guard = -1;
    if (take(p, "@")) {
        unless = take(p, "!");
        (void)word(p, name);
        guard = register_of(p, name);
    }
    size_t const length = word(p, name);
    if (name[0] == '$' && name[length - 1] == ':') {
        name[length - 1] = '\0';
        p->labels[label_number(p, name)] = p->kernel->length;
        return;
    }
    const ptx_opcode *const opcode = ptx_opcode_find(name, length);
    if (opcode == NULL)
        refuse(p, "unknown instruction %s", name);
    ptx_instruction *const in = new_instruction(p);
    in->kind = opcode->kind;
    in->compute = opcode->compute;
    in->use = opcode->use;
    in->guard = guard;
    in->unless = unless;
    describe(p, name, in);
    if (in->kind == PTX_BRANCH) {
        char label[NAME_MAX_BYTES];
        (void)word(p, label);
        in->target = label_number(p, label);
        expect(p, ";");
        return;
    }
    operands(p, in);
    if (strcmp(name, "cvta.shared.u64") == 0) /* which adds where shared memory begins */
        in->operands[in->count++] = PTX_SHARED_BASE;
    bool const moves = in->kind == PTX_COMPUTE && strncmp(name, "mov.", 4) == 0;
    if (moves && in->count == 3) /* {low, high} on one side */
        in->kind = in->first == 1 ? PTX_PACK : PTX_UNPACK;
    if (in->kind == PTX_PACK || in->kind == PTX_UNPACK)
        in->bytes = atoi(name + 5) / 16;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void registers(parser *p)
{
    char name[NAME_MAX_BYTES];
    (void)word(p, name); /* the type */
    (void)word(p, name);
    if (p->family_count == FAMILIES_MAX || strlen(name) >= sizeof(p->families[0].name))
        refuse(p, "unexpected register %s", name);
    family *const f = &p->families[p->family_count++];
    snprintf(f->name, sizeof(f->name), "%s", name);
    f->first = p->kernel->registers;
    f->count = 1;
    if (take(p, "<")) {
        f->count = number(p);
        expect(p, ">");
    }
    p->kernel->registers += f->count;
    expect(p, ";");
}

/* Inline assembly stands in braces of its own, with registers that end there. */
static void body(parser *p)
{
    int families[DEPTH_MAX] = {0};
    expect(p, "{");
    for (int depth = 1; depth > 0;) {
        skip_spaces(p);
        if (*p->at == '\0')
            refuse(p, "the kernel does not end");
        if (depth < DEPTH_MAX && take(p, "{"))
            families[depth++] = p->family_count;
        else if (take(p, "}"))
            p->family_count = families[--depth];
        else if (take(p, ".reg"))
            registers(p);
        else if (*p->at == '.') /* .pragma */
            p->at += strcspn(p->at, ";") + 1;
        else
            statement(p);
    }
}

static void header(parser *p)
{
    char name[NAME_MAX_BYTES];
    expect(p, "(");
    expect(p, ".param");
    expect(p, ".align");
    (void)number(p);
    expect(p, ".b8");
    (void)word(p, p->param);
    expect(p, "[");
    p->kernel->param_bytes = (size_t)number(p);
    expect(p, "]");
    expect(p, ")");
    for (skip_spaces(p); *p->at == '.'; skip_spaces(p)) {
        (void)word(p, name);
        int const value = number(p);
        if (strcmp(name, ".maxntid") == 0)
            p->kernel->threads = value;
        else if (strcmp(name, ".minnctapersm") == 0)
            p->kernel->blocks = value;
        else
            refuse(p, "unknown directive %s", name);
        while (take(p, ","))
            (void)number(p);
    }
}

/* Labels become instructions, constants the last registers. */
static void resolve(parser *p)
{
    ptx_kernel *const k = p->kernel;
    for (int i = 0; i < k->length; ++i) {
        ptx_instruction *const in = &k->code[i];
        p->line = in->line;
        if (in->kind == PTX_BRANCH && (in->target = p->labels[in->target]) < 0)
            refuse(p, "a branch to nowhere");
        for (int o = 0; o < in->count; ++o)
            if (in->operands[o] < 0)
                in->operands[o] = k->registers - 1 - in->operands[o];
    }
    k->registers += k->constant_count;
}

ptx_kernel *ptx_parse(const char *file, const char *text, const char *at, const char *name)
{
    ptx_kernel *const kernel = calloc(1, sizeof(*kernel));
    parser p = {.file = file, .at = at, .line = 1, .kernel = kernel};
    p.labels = malloc(sizeof(int) * LABELS_MAX);
    if (kernel == NULL || p.labels == NULL)
        refuse(&p, "no memory");
    for (const char *c = text; c < at; ++c)
        p.line += *c == '\n';
    for (int i = 0; i < LABELS_MAX; ++i)
        p.labels[i] = -1;
    kernel->name = strdup(name);
    kernel->file = strdup(file);
    kernel->registers = PTX_SPECIALS;
    header(&p);
    body(&p);
    resolve(&p);
    free(p.labels);
    return kernel;
}
