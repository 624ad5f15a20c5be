/* What text may stand in a configuration or a report at all, and how messages show it. */
#include "config_yaml.h"

#include <stdint.h>
#include <string.h>

const char *ra_text_shown(const char *text, char shown[48])
{
    size_t at = 0;
    for (; text[at] != '\0' && at < 40; at++) {
        unsigned char const c = (unsigned char)text[at];
        shown[at] = text[at];
        if (c < 0x20 || c == 0x7f)
            shown[at] = '?';
    }
    while (text[at] != '\0' && at > 37 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--; /* to where the character begins that does not fit */
    memcpy(shown + at, text[at] != '\0' ? "..." : "", text[at] != '\0' ? 4 : 1);
    return shown;
}

/* Bytes of the UTF-8 character at `text`, which has `bytes` left; 0: it is none. */
static size_t character_bytes(const unsigned char *text, size_t bytes, uint32_t *code_out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char const c = text[0];
    size_t const count = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    if (count == 0 || count > bytes)
        return 0;
    uint32_t code = count == 1 ? c : c & (0x7fu >> count);
    for (size_t i = 1; i < count; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3fu);
    }
    /* Neither longer than needed, nor half of a pair, nor past the last character. */
    bool const is_character =
        code >= least[count] && (code < 0xd800 || code > 0xdfff) && code <= 0x10ffff;
    *code_out = code;
    return is_character ? count : 0;
}

/* As in YAML, but for U+0085, which moves a terminal to its next line; XML takes all of it, too. */
static bool is_printable(uint32_t code)
{
    if (code < 0x20)
        return code == '\t' || code == '\n' || code == '\r';
    return (code < 0x7f || code > 0x9f) && code != 0xfffe && code != 0xffff;
}

size_t ra_text_invalid_at(const char *text, size_t bytes)
{
    const unsigned char *at_byte = (const unsigned char *)text;
    size_t at = 0;
    while (at < bytes) {
        uint32_t code = 0;
        size_t const count = character_bytes(at_byte + at, bytes - at, &code);
        if (count == 0 || !is_printable(code))
            return at;
        at += count;
    }
    return bytes;
}

bool ra_text_is_line(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++)
        if ((unsigned char)text[at] < ' ')
            return false;
    return ra_text_invalid_at(text, bytes) == bytes;
}

void ra_text_mend(char *text)
{
    size_t const bytes = strlen(text);
    for (size_t at; (at = ra_text_invalid_at(text, bytes)) < bytes;)
        text[at] = '?';
}

size_t ra_text_directive_at(const char *text, size_t bytes)
{
    static const char mark[] = "\xef\xbb\xbf"; /* a byte order mark may come first */
    size_t const begin = bytes >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0;
    for (size_t at = begin; at < bytes; at++) {
        bool const line_begins = at == begin || text[at - 1] == '\n' || text[at - 1] == '\r';
        if (line_begins && text[at] == '%')
            return at;
    }
    return bytes;
}
