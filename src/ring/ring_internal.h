/* Private to src/ring: the plan of steps that a pass follows. */
#ifndef RINGATTN_RING_INTERNAL_H
#define RINGATTN_RING_INTERNAL_H

#include "ringattn/ring.h"

#endif
