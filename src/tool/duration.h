/* Times for people: in tables, and on the progress line. */
#ifndef RINGATTN_TOOL_DURATION_H
#define RINGATTN_TOOL_DURATION_H

/** "0.250 ms", "12.35 s", "20.58 min", "342.94 h". Returns text. */
const char *ra_duration_text(double ms, char text[32]);

#endif
