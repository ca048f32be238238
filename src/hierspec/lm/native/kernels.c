/* A Llama-shaped model in one call: one parallel region, weights read once, rows kept apart.
 *
 * torch runs a layer as some twenty operations, each with its own threads to wake; for one token that
 * is most of the time. Here all threads stay together from the embedding to the scores and meet at
 * barriers. products.c has the products, attention.h the attention.
 *
 * Plain C with GNU vector types (gcc, clang): library.py compiles it for the processor at hand.
 */
#include <sched.h>

#include "attention.h"
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

#define ATTENTION 1 /* parts of a layer, as bits */
#define MLP 2
#define MOST_NEXT (128 << 10) /* bytes of what is read next that are asked for: the second cache has room */
#define FIRST_LINES 64        /* of them in any case, so that its beginning is not waited for */
#define PANELS_PER_REFINED 16 /* of so many panels of scores at most one is made again */
#define NEAR 8.0f /* how far below the best, in nats, scores are made again */
#define SLICE 128 /* probabilities whose mass is summed, so that a draw looks for a slice first */

typedef struct {
    int arrived, generation, count;
} Barrier;

/* What a thread reads next: asked for while it waits. */
typedef struct {
    const uint8_t *from, *end;
} Next;

static Next next_part(const Matrix *m, int t, int all) {
    const Part own = part_of(num_panels(m), t, all);
    const uint8_t *from = m->panels + own.lo * m->panel_bytes;
    const int64_t size = (own.hi - own.lo) * m->panel_bytes;
    return (Next){from, from + (size < MOST_NEXT ? size : MOST_NEXT)};
}

static void barrier_wait(Barrier *b, Next next) {
    for (int i = 0; i < FIRST_LINES && next.from < next.end; i++, next.from += 64)
        fetch_early(next.from);
    if (b->count == 1) return;
    int generation = __atomic_load_n(&b->generation, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == b->count) {
        __atomic_store_n(&b->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->generation, generation + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&b->generation, __ATOMIC_ACQUIRE) == generation; spins++) {
        if (next.from < next.end) {
            fetch_early(next.from);
            next.from += 64;
            continue;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        /* Somebody else has the processor that the others need. */
        if (spins > 4000) sched_yield();
    }
}

/* Outputs in some panels of a matrix. */
static Part outputs_of(const Matrix *m, Part part) {
    int64_t end = part.hi * PANEL;
    return (Part){part.lo * PANEL, end < m->out ? end : m->out};
}

/* Rows packed for the matrices of one input, in one kind after the other. */
typedef struct {
    const float *x;
    float *packed;
    int64_t rows, kind;
} Packed;

/* Panels `own` of m times the rows, packed anew where this matrix needs another kind. */
static void multiply(const Matrix *m, Part own, Packed *rows, float *y, int64_t stride) {
    const int kind = inputs_of(m);
    if (rows->kind != kind) pack(kind, m->in, rows->x, rows->rows, rows->packed);
    rows->kind = kind;
    m->multiply(m, own, rows->packed, rows->rows, y, stride);
}

/* A thread's part of m · x, to its columns of y [rows, stride]. */
static void multiply_part(const Matrix *m, int t, int all, Packed *rows, float *y, int64_t stride) {
    Part own = part_of(num_panels(m), t, all);
    multiply(m, own, rows, y + own.lo * PANEL, stride);
}

/* h [rows, out] += that part; `buffer` holds the product. */
static void add_part(const Matrix *m, int t, int all, Packed *rows, float *buffer, float *h) {
    Part own = part_of(num_panels(m), t, all), columns = outputs_of(m, own);
    const int64_t width = columns.hi - columns.lo;
    multiply(m, own, rows, buffer, width);
    for (int64_t r = 0; r < rows->rows; r++)
        for (int64_t o = 0; o < width; o++) h[r * m->out + columns.lo + o] += buffer[r * width + o];
}

/* What of a model a call runs: layers lo … hi − 1, none where these are equal, and then the head. Where
 * its spans have drafts, one row of each is scored, and each token that is picked runs like that in
 * its turn: the call then changes step by step. */
typedef struct {
    int64_t lo, hi;
    const uint8_t *parts; /* of layer l those named by parts[l − lo]; null: all */
    Span *spans;
    int64_t num_spans, rows;
    int64_t *ids;        /* [rows], read where a span has no input */
    const float *inputs; /* of q, k and v, [rows, their width], normed in stretches of `hidden`; null: h */
    const float *rotations; /* [positions, dim]: cos, sin of a pair side by side */
    const float **scored; /* [num_scored] hidden states, those that the call makes included */
    int64_t num_scored;
    float *scores; /* [num_scored, outputs], of drafts those of the last step */
    int64_t num_choices;      /* of the outputs the first so many can be picked */
    const int64_t *choice_ids; /* [outputs] tokens; null: the outputs' numbers */
} Call;

/* An output, and its score. */
typedef struct {
    float score;
    int64_t output;
} Choice;

/* Weights that a draw keeps: those above `edge`, and those equal to it of the outputs from `first` on. */
typedef struct {
    float edge;
    int64_t first;
    double sum;
} Kept;

enum { DONE = 0, NO_MEMORY = -1, NO_CHOICE = 1, GOES_ON = 2 };

/* A call at work: memory that its threads share. */
typedef struct {
    const Model *model;
    Call *call;
    Plan plan;
    Barrier barrier;
    float *h, *qkv, *attended, *gate, *up, *tops;
    Choice *best; /* [threads, num_spans] where there are drafts, of each thread's outputs; else null */
    double *sums, *masses; /* [num_spans, slices] where drafts are drawn: before and after division */
    Kept *kept;            /* [num_spans] of them */
    int state;
} Work;

/* A thread's share of the layers, on h [rows, hidden]; x [rows, width of q's inputs] and packed [rows,
 * widest] are its own. */
static void run_layers(Work *work, float *x, float *packed, const Space *space, int t, int all) {
    const Model *model = work->model;
    const Call *call = work->call;
    Barrier *barrier = &work->barrier;
    const int64_t d = model->hidden, inner = model->inner, dim = model->dim, rows = call->rows;
    const int64_t heads = model->heads, kv = model->kv_heads, width = (heads + 2 * kv) * dim;
    float *h = work->h, *qkv = work->qkv, *attended = work->attended;
    float *gate = work->gate, *up = work->up;
    for (int64_t l = call->lo; l < call->hi; l++) {
        const Layer *layer = model->layers + l;
        const int own_parts = call->parts ? call->parts[l - call->lo] : ATTENTION | MLP;
        const Next next_proj = next_part(&layer->proj, t, all);
        const Next next_gate = next_part(&layer->gate, t, all);
        const Next next_down = next_part(&layer->down, t, all);
        Next next = {0};
        if (l + 1 < call->hi)
            next = next_part(&layer[1].q, t, all);
        else if (call->num_scored)
            next = next_part(model->output, t, all);
        if (own_parts & ATTENTION) {
            const float *inputs = call->inputs ? call->inputs : h;
            const int64_t read = layer->q.in;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < read; i += d)
                    rms_norm(inputs + r * read + i, layer->norm + i, model->eps, d, x + r * read + i);
            Packed normed = {x, packed, rows, -1};
            multiply_part(&layer->q, t, all, &normed, qkv, width);
            multiply_part(&layer->k, t, all, &normed, qkv + heads * dim, width);
            multiply_part(&layer->v, t, all, &normed, qkv + (heads + kv) * dim, width);
            barrier_wait(barrier, next_proj);

            rotate_and_store(model, l, qkv, rows, work->plan.rows, call->rotations, t, all);
            barrier_wait(barrier, next_proj);
            attend_rows(model, l, &work->plan, qkv, attended, space, t, all);
            barrier_wait(barrier, next_proj);
            if (work->plan.blocks > 1) {
                add_up_blocks(model, l, &work->plan, rows, attended, space, t, all);
                barrier_wait(barrier, next_proj);
            }

            Packed values = {attended, packed, rows, -1};
            add_part(&layer->proj, t, all, &values, x, h);
            barrier_wait(barrier, next_gate);
        }
        if (own_parts & MLP) {
            for (int64_t r = 0; r < rows; r++)
                rms_norm(h + r * d, layer->mlp_norm, model->eps, d, x + r * d);
            Packed normed = {x, packed, rows, -1};
            multiply_part(&layer->gate, t, all, &normed, gate, inner);
            multiply_part(&layer->up, t, all, &normed, up, inner);
            Part columns = outputs_of(&layer->gate, part_of(num_panels(&layer->gate), t, all));
            for (int64_t r = 0; r < rows; r++)
                swiglu(gate + r * inner + columns.lo, up + r * inner + columns.lo,
                       columns.hi - columns.lo);
            barrier_wait(barrier, next_down);

            Packed activated = {gate, packed, rows, -1};
            add_part(&layer->down, t, all, &activated, x, h);
            barrier_wait(barrier, next);
        }
    }
}

/* How far below the best a panel's best score may lie so that few panels do: at most `near`. */
static float margin_for_few(const float *tops, int64_t n, float most, float near) {
    for (;; near *= 0.8f) {
        int64_t count = 0;
        for (int64_t p = 0; p < n; p++) count += tops[p] >= most - near;
        if (count * PANELS_PER_REFINED <= n || count <= 1 || !(near > 1e-3f)) return near;
    }
}

/* A thread's share of the scores anew, from rows packed as codes, for the panels whose best score comes
 * near the row's best: of a large vocabulary few do, and half is read. Where more do, as of a row that
 * nobody could guess, only the nearest count. */
static void refine(Work *work, const float *packed, int t, int all) {
    const Matrix *fine = work->model->refined;
    const int64_t out = fine->out, n = num_panels(fine), rows = work->call->num_scored;
    const int64_t each = packed_floats(CODES, fine->in);
    const Part own = part_of(n, t, all);
    float *y = work->call->scores;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t p = own.lo; p < own.hi; p++) {
            int64_t end = (p + 1) * PANEL < out ? (p + 1) * PANEL : out;
            float top = -INFINITY;
            for (int64_t o = p * PANEL; o < end; o++)
                top = y[r * out + o] > top ? y[r * out + o] : top;
            work->tops[r * n + p] = top;
        }
    barrier_wait(&work->barrier, (Next){0});
    for (int64_t r = 0; r < rows; r++) {
        const float *top = work->tops + r * n;
        float most = -INFINITY;
        for (int64_t p = 0; p < n; p++) most = top[p] > most ? top[p] : most;
        float limit = most - margin_for_few(top, n, most, NEAR);
        for (int64_t p = own.lo; p < own.hi; p++)
            if (top[p] >= limit)
                fine->multiply(fine, (Part){p, p + 1}, packed + r * each, 1, y + r * out + p * PANEL,
                               out);
    }
}

/* A thread's share of the scores; x [num_scored, hidden] and packed are its own. */
static void score(Work *work, float *x, float *packed, int t, int all) {
    const Model *model = work->model;
    const Call *call = work->call;
    const int64_t d = model->hidden;
    for (int64_t r = 0; r < call->num_scored; r++)
        rms_norm(call->scored[r], model->final_norm, model->eps, d, x + r * d);
    Packed normed = {x, packed, call->num_scored, -1};
    multiply_part(model->output, t, all, &normed, call->scores, model->output->out);
    if (model->refined) refine(work, packed, t, all);
}

/* The hidden states before the first layer. */
static void fill_rows(const Work *work) {
    const Matrix *embedding = work->model->embedding;
    const Call *call = work->call;
    const int64_t d = work->model->hidden;
    int64_t row = 0;
    for (const Span *span = call->spans; span < call->spans + call->num_spans; span++) {
        if (span->input)
            memcpy(work->h + row * d, span->input, sizeof(float) * (size_t)(span->count * d));
        else
            embedding->rows(embedding, call->ids + row, span->count, work->h + row * d);
        row += span->count;
    }
}

/* The best of some scores: the first of equals, a NaN if there is one. */
static Choice best_of(const float *scores, Part part) {
    vec best = all_of(-INFINITY);
    ivec places = {0}, lane = {0};
    for (int i = 0; i < W; i++) lane[i] = i;
    int64_t o = part.lo;
    for (; o + W <= part.hi; o += W, lane += W) {
        const vec own = *(const vec *)(scores + o);
        const ivec better = (own > best) | (own != own);
        best = choose(better, own, best);
        places = (lane & better) | (places & ~better);
    }
    Choice found = {-INFINITY, part.lo};
    for (int i = 0; i < W && o > part.lo; i++)
        if (best[i] > found.score || best[i] != best[i] ||
            (best[i] == found.score && part.lo + places[i] < found.output))
            found = (Choice){best[i], part.lo + places[i]};
    for (; o < part.hi; o++)
        if (scores[o] > found.score || scores[o] != scores[o]) found = (Choice){scores[o], o};
    return found;
}

/* A thread's best outputs of each span, among those that it has scored. */
static void choose_own(const Work *work, int t, int all) {
    const Matrix *output = work->model->output;
    const Call *call = work->call;
    Part own = outputs_of(output, part_of(num_panels(output), t, all));
    if (own.hi > call->num_choices) own.hi = call->num_choices;
    for (int64_t i = 0; i < call->num_spans; i++)
        work->best[t * call->num_spans + i] = best_of(call->scores + i * output->out, own);
}

/* The best output of a span, of all threads' own. */
static Choice best_output(const Work *work, int64_t span, int all) {
    Choice best = {-INFINITY, 0};
    for (int t = 0; t < all; t++) {
        const Choice own = work->best[t * work->call->num_spans + span];
        if (own.score > best.score || own.score != own.score) best = own;
    }
    return best;
}

static int64_t num_slices(const Call *call) { return (call->num_choices + SLICE - 1) / SLICE; }

static Part slice_at(const Call *call, int64_t number) {
    const int64_t lo = number * SLICE, hi = lo + SLICE;
    return (Part){lo, hi < call->num_choices ? hi : call->num_choices};
}

static double sum_of(const float *x, int64_t n) {
    double_vec sums = {0};
    double sum = 0;
    int64_t i = 0;
    for (; i + W / 2 <= n; i += W / 2)
        sums += __builtin_convertvector(*(const half_vec *)(x + i), double_vec);
    for (int lane = 0; lane < W / 2; lane++) sum += sums[lane];
    for (; i < n; i++) sum += (double)x[i];
    return sum;
}

/* e^((x − most) / temperature); 0 below e^−87. */
INLINE vec weights_of(vec x, float most, float temperature) {
    x = (x - most) / temperature;
    return choose(x < -87.0f, all_of(0.0f), exponential(x));
}

static void fill_weights(const float *x, int64_t n, float most, float temperature, float *y) {
    int64_t i = 0;
    for (; i + W <= n; i += W)
        *(vec *)(y + i) = weights_of(*(const vec *)(x + i), most, temperature);
    vec rest = all_of(most);
    memcpy(&rest, x + i, sizeof(float) * (size_t)(n - i));
    rest = weights_of(rest, most, temperature);
    memcpy(y + i, &rest, sizeof(float) * (size_t)(n - i));
}

/* Whether a span's next token is drawn, and there are probabilities to draw it from. */
static int is_drawn(const Span *span, Choice best) {
    return span->temperature > 0 && best.score > -INFINITY && best.score < INFINITY;
}

/* Of numbers ≥ 0, in whole vectors: the sum of those that are at least `least`, or how many these are. */
static double amount_from(const float *x, int64_t n, float least, int by_mass) {
    double_vec sums[2] = {{0}, {0}};
    double sum = 0;
    for (int64_t i = 0; i < n; i += W) {
        const vec own = *(const vec *)(x + i);
        const vec some = choose(own >= least, by_mass ? own : all_of(1.0f), all_of(0.0f));
        half_vec halves[2];
        memcpy(halves, &some, sizeof some);
        for (int h = 0; h < 2; h++) sums[h] += __builtin_convertvector(halves[h], double_vec);
    }
    for (int lane = 0; lane < W / 2; lane++) sum += sums[0][lane] + sums[1][lane];
    return sum;
}

/* The largest number, at least `least` and at most 1, from which on the amount reaches `goal`; `least`
 * where none does. Numbers ≥ 0 are in the order of their bits. */
static float edge_of(const float *x, int64_t n, float least, double goal, int by_mass) {
    const float most = 1.0f;
    word low, end;
    memcpy(&low, &least, sizeof low), memcpy(&end, &most, sizeof end);
    for (end++; end - low > 1;) {
        const word middle = low + (end - low) / 2;
        float edge;
        memcpy(&edge, &middle, sizeof edge);
        if (amount_from(x, n, edge, by_mass) >= goal)
            low = middle;
        else
            end = middle;
    }
    memcpy(&least, &low, sizeof low);
    return least;
}

/* What a span keeps of its weights, of which the largest is 1, as sampling/sampler.py does: the `top_k`
 * best and their ties; of these the fewest best ones with `top_p` of the mass, of ties the last; of
 * these what is at least `min_p`. `list` [num_choices + W] is for those that may be among them. */
static Kept kept_of(const Call *call, const Span *span, const double *sums, float *list) {
    const int64_t n = num_slices(call), k = span->top_k;
    const int by_rank = k > 0 && k < call->num_choices;
    int by_mass = span->top_p < 1;
    double total = 0, goal = 0;
    for (int64_t s = 0; s < n; s++) total += sums[s];
    if (!by_rank && !by_mass && !(span->min_p > 0)) return (Kept){0, 0, total};
    float bound = 0;
    if (by_rank && k <= n) { /* k slices have a weight that is at least the mean of the kth best */
        for (int64_t s = 0; s < n; s++) list[s] = (float)(sums[s] / SLICE);
        for (int64_t s = n; s % W; s++) list[s] = -1;
        bound = edge_of(list, n, 0, (double)k, 0);
    } else if (by_mass && !by_rank) /* all below have too little for one of them to be needed */
        bound = (float)((1 - span->top_p) * total / (double)call->num_choices);
    if (!(by_rank && by_mass) && span->min_p > bound) bound = span->min_p;
    int64_t num = 0;
    for (int64_t s = 0; s < n; s++) {
        const Part at = slice_at(call, s);
        for (int64_t o = at.lo; sums[s] >= bound && o < at.hi; o++) {
            list[num] = span->probs[o];
            num += list[num] >= bound;
        }
    }
    for (int i = 0; i < W; i++) list[num + i] = -1;
    Kept kept = {bound, 0, 0};
    if (by_rank) kept.edge = edge_of(list, num, bound, (double)k, 0);
    if (by_mass) {
        goal = span->top_p * (by_rank ? amount_from(list, num, kept.edge, 1) : total);
        kept.edge = edge_of(list, num, kept.edge, goal, 1);
    }
    if (span->min_p > kept.edge) kept.edge = span->min_p, by_mass = 0;
    const float above = nextafterf(kept.edge, 2);
    double tied = amount_from(list, num, kept.edge, 0) - amount_from(list, num, above, 0);
    kept.sum = amount_from(list, num, above, 1);
    const double needed = ceil((goal - kept.sum) / (double)kept.edge);
    if (by_mass && needed < tied) {
        tied = needed, kept.first = call->num_choices;
        for (double found = 0; found < needed;) found += span->probs[--kept.first] == kept.edge;
    }
    kept.sum += tied * (double)kept.edge;
    return kept;
}

/* Divide those of n weights that are at least `least`; the others become 0. */
static void divide(float *x, int64_t n, float least, float inverse) {
    for (int64_t i = 0; i < n; i++) x[i] = x[i] >= least ? x[i] * inverse : 0.0f;
}

/* A thread's share of the probabilities that each span's next token is drawn from. The sums of
 * slices do not depend on who makes them. `list` is its own. */
static void fill_probs(Work *work, float *list, int t, int all) {
    const Call *call = work->call;
    const int64_t out = work->model->output->out, n = num_slices(call);
    const Part own = part_of(n, t, all);
    for (int64_t i = 0; i < call->num_spans; i++) {
        const Span *span = call->spans + i;
        const Choice best = best_output(work, i, all);
        for (int64_t s = own.lo; is_drawn(span, best) && s < own.hi; s++) {
            const Part at = slice_at(call, s);
            const int64_t size = at.hi - at.lo;
            fill_weights(call->scores + i * out + at.lo, size, best.score, span->temperature,
                         span->probs + at.lo);
            work->sums[i * n + s] = sum_of(span->probs + at.lo, size);
        }
    }
    barrier_wait(&work->barrier, (Next){0});
    for (int64_t i = t; i < call->num_spans; i += all)
        if (is_drawn(call->spans + i, best_output(work, i, all)))
            work->kept[i] = kept_of(call, call->spans + i, work->sums + i * n, list);
    barrier_wait(&work->barrier, (Next){0});
    for (int64_t i = 0; i < call->num_spans; i++) {
        if (!is_drawn(call->spans + i, best_output(work, i, all))) continue;
        const Kept kept = work->kept[i];
        const float inverse = (float)(1 / kept.sum), above = nextafterf(kept.edge, 2);
        float *probs = call->spans[i].probs;
        for (int64_t s = own.lo; s < own.hi; s++) {
            const Part at = slice_at(call, s);
            int64_t first = kept.first < at.lo ? at.lo : kept.first < at.hi ? kept.first : at.hi;
            divide(probs + at.lo, first - at.lo, above, inverse);
            divide(probs + first, at.hi - first, kept.edge, inverse);
            work->masses[i * n + s] = sum_of(probs + at.lo, at.hi - at.lo);
        }
    }
}

/* The first output whose cumulated probability exceeds u times the sum, as core/distributions.py
 * draws; none of probability 0. */
static int64_t drawn_output(const Call *call, const float *probs, const double *masses, double u) {
    const int64_t n = num_slices(call);
    double total = 0, before = 0;
    for (int64_t s = 0; s < n; s++) total += masses[s];
    const double below = nextafter(total, 0), goal = u * total < below ? u * total : below;
    int64_t s = 0;
    while (s < n - 1 && before + masses[s] <= goal) before += masses[s++];
    const Part at = slice_at(call, s);
    /* The numbers of a slice may add up to less than its mass, by rounding. */
    int64_t last = at.lo;
    for (int64_t o = at.lo; o < at.hi; o++) {
        if (probs[o] > 0) last = o;
        before += (double)probs[o];
        if (before > goal) break;
    }
    return last;
}

/* The token after each span goes to its draft, and into the call where the draft goes on. Returns
 * what becomes of the work: NO_CHOICE where a row has NaN or nothing to choose. */
static int draft_tokens(Work *work, int all) {
    const Model *model = work->model;
    Call *call = work->call;
    const int64_t slices = num_slices(call);
    int64_t num = 0;
    for (int64_t i = 0; i < call->num_spans; i++) {
        const Choice best = best_output(work, i, all);
        if (!(best.score > -INFINITY)) return NO_CHOICE;
        Span span = call->spans[i];
        int64_t output = best.output;
        if (span.temperature > 0) {
            if (!is_drawn(&span, best)) return NO_CHOICE;
            output = drawn_output(call, span.probs, work->masses + i * slices, *span.uniforms++);
            span.probs += call->num_choices;
        }
        *span.draft++ = call->choice_ids ? call->choice_ids[output] : output;
        if (!--span.num_drafted) continue;
        span.start += span.count, span.output += span.count * model->hidden;
        span.count = 1, span.input = 0;
        call->ids[num] = span.draft[-1], call->scored[num] = span.output;
        call->spans[num++] = span;
    }
    call->num_spans = call->num_scored = call->rows = num;
    if (!num) return DONE;
    free_plan(work->plan);
    work->plan = plan_attention(model, call->spans, num, num, all);
    if (!work->plan.rows) return NO_MEMORY;
    fill_rows(work);
    return GOES_ON;
}

/* --- what Python calls */

/* Returns DONE, NO_MEMORY or, of drafts, NO_CHOICE; the call then has the scores of a row without one. */
int hierspec_run(const Model *model, Call *call, int threads) {
    const int64_t d = model->hidden, inner = model->inner, dim = model->dim, rows = call->rows;
    const int64_t heads = model->heads, width = (heads + 2 * model->kv_heads) * dim;
    const int has_layers = rows > 0 && call->lo < call->hi;
    const int64_t read = has_layers ? model->layers[call->lo].q.in : 0;
    /* Shared: hidden states, products and what is attended, the best scores of panels; each thread's
     * own: rows, what attention needs. */
    int64_t widest = read > inner ? read : inner;
    if (heads * dim > widest) widest = heads * dim;
    const int64_t num_tops = model->refined ? call->num_scored * num_panels(model->refined) : 0;
    const int64_t common = rows * (d + width + heads * dim + 2 * inner) + num_tops;
    /* Codes take whole groups. */
    int64_t each = has_layers ? rows * (read + num_groups(widest) * GROUP) : 0;
    const int64_t of_scores = call->num_scored * (d + num_groups(d) * GROUP);
    if (of_scores > each) each = of_scores;
    const int64_t space_size = has_layers ? space_floats(model) : 0;
    const int drafts = call->num_spans && call->spans->num_drafted;
    int draws = 0;
    for (int64_t i = 0; drafts && i < call->num_spans; i++) draws |= call->spans[i].temperature > 0;
    const int64_t num_sums = draws ? call->num_spans * num_slices(call) : 0;
    if (draws && each < call->num_choices + W) each = call->num_choices + W;
    each += space_size;
    Work work = {.model = model, .call = call, .barrier = {0, 0, threads}, .state = NO_MEMORY};
    if (has_layers) work.plan = plan_attention(model, call->spans, call->num_spans, rows, threads);
    if (drafts) work.best = malloc(sizeof(Choice) * (size_t)(threads * call->num_spans));
    if (draws) work.sums = malloc(sizeof(double) * (size_t)(2 * num_sums));
    if (draws) work.kept = malloc(sizeof(Kept) * (size_t)call->num_spans);
    float *memory = malloc(sizeof(float) * (size_t)(common + threads * each));
    if (!memory || (has_layers && !work.plan.rows) || (drafts && !work.best) ||
        (draws && !(work.sums && work.kept)))
        goto end;
    work.masses = work.sums + num_sums;
    work.h = memory, work.qkv = work.h + rows * d, work.attended = work.qkv + rows * width;
    work.gate = work.attended + rows * heads * dim, work.up = work.gate + rows * inner;
    work.tops = work.up + rows * inner;
    work.state = DONE;
    fill_rows(&work);
#pragma omp parallel num_threads(threads)
    {
        /* OpenMP may give fewer threads than asked for. */
#pragma omp single
        work.barrier.count = omp_get_num_threads();
        const int t = omp_get_thread_num(), all = work.barrier.count;
        float *own = memory + common + t * each;
        do {
            if (has_layers) {
                const Space space = space_at(model, own + each - space_size);
                run_layers(&work, own, own + rows * read, &space, t, all);
            }
            const float *h = work.h;
            for (int64_t i = 0; t == 0 && i < call->num_spans; h += call->spans[i++].count * d)
                memcpy(call->spans[i].output, h, sizeof(float) * (size_t)(call->spans[i].count * d));
            if (call->num_scored) {
                barrier_wait(&work.barrier, (Next){0});
                score(&work, own, own + call->num_scored * d, t, all);
            }
            if (drafts) {
                choose_own(&work, t, all);
                barrier_wait(&work.barrier, (Next){0});
                if (work.sums) {
                    fill_probs(&work, own, t, all);
                    barrier_wait(&work.barrier, (Next){0});
                }
                if (t == 0) work.state = draft_tokens(&work, all);
                barrier_wait(&work.barrier, next_part(&model->layers[call->lo].q, t, all));
            }
        } while (work.state == GOES_ON);
    }
end:
    free(memory);
    free(work.best);
    free(work.sums);
    free(work.kept);
    free_plan(work.plan);
    return work.state;
}

/* x [rows, in], normalised first unless `norm` is null → y [rows, out]. Returns 0, or −1 where there is
 * no memory. */
int hierspec_product(const Matrix *matrix, const float *norm, float eps, const float *x, int64_t rows,
                     float *y, int threads) {
    const int64_t d = matrix->in;
    const int kind = inputs_of(matrix);
    float *memory = malloc(sizeof(float) * (size_t)(rows * (d + packed_floats(kind, d))));
    float *packed = memory + rows * d;
    if (!memory) return -1;
    for (int64_t r = 0; norm && r < rows; r++) rms_norm(x + r * d, norm, eps, d, memory + r * d);
    pack(kind, d, norm ? memory : x, rows, packed);
#pragma omp parallel num_threads(threads)
    {
        Part own = part_of(num_panels(matrix), omp_get_thread_num(), omp_get_num_threads());
        matrix->multiply(matrix, own, packed, rows, y + own.lo * PANEL, matrix->out);
    }
    free(memory);
    return 0;
}
