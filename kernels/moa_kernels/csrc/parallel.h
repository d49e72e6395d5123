// Runs the tasks of a phase on a few threads that wait, spinning briefly, for the next phase.
//
// A ticket holds the number of the phase, how many threads and tasks it has, and the next task to take, so that a thread
// that wakes late can never take a task of a phase that is over. One call at a time has the threads.
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define RELAX() _mm_pause()
#else
#define RELAX() __asm__ volatile("yield")
#endif

#define THREADS_MOST 64
#define TASKS_MOST ((1 << 20) - 1)
#define SPINS 4000  // about 50 microseconds: longer than any gap between two phases, much shorter than one between calls

typedef void (*task_t)(void *context, int task, int worker);  // worker: which of the call's threads runs it, from 0

static struct {
    pthread_mutex_t in_use, sleeping;
    pthread_cond_t wake;
    int threads;  // started so far
    task_t run;
    void *context;
    _Atomic uint64_t ticket;
    atomic_int finished, sleepers;
} pool = {.in_use = PTHREAD_MUTEX_INITIALIZER, .sleeping = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static int ticket_next(uint64_t ticket) { return (int)(ticket & TASKS_MOST); }
static int ticket_tasks(uint64_t ticket) { return (int)(ticket >> 20 & TASKS_MOST); }
static int ticket_threads(uint64_t ticket) { return (int)(ticket >> 40 & 127); }
static int is_open(uint64_t ticket, int worker) {
    return ticket_next(ticket) < ticket_tasks(ticket) && worker < ticket_threads(ticket);
}

static void take_tasks(int worker) {
    uint64_t ticket = atomic_load(&pool.ticket);
    while (is_open(ticket, worker)) {
        if (!atomic_compare_exchange_weak(&pool.ticket, &ticket, ticket + 1)) continue;
        pool.run(pool.context, ticket_next(ticket), worker);
        atomic_fetch_add(&pool.finished, 1);
        ticket = atomic_load(&pool.ticket);
    }
}

static void *work(void *argument) {
    int worker = (int)(intptr_t)argument;
    for (;;) {
        for (int spins = 0; !is_open(atomic_load(&pool.ticket), worker) && spins < SPINS; spins++) RELAX();
        if (!is_open(atomic_load(&pool.ticket), worker)) {
            pthread_mutex_lock(&pool.sleeping);
            atomic_fetch_add(&pool.sleepers, 1);
            while (!is_open(atomic_load(&pool.ticket), worker)) pthread_cond_wait(&pool.wake, &pool.sleeping);
            atomic_fetch_sub(&pool.sleepers, 1);
            pthread_mutex_unlock(&pool.sleeping);
        }
        take_tasks(worker);
    }
    return NULL;
}

// Takes the pool for one call. Returns how many threads there are: 1 where another call has the pool.
static int begin_parallel(int threads) {
    if (threads > THREADS_MOST) threads = THREADS_MOST;
    if (threads < 2 || pthread_mutex_trylock(&pool.in_use) != 0) return 1;
    while (pool.threads < threads - 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)(pool.threads + 1)) != 0) break;
        pthread_detach(thread);
        pool.threads++;
    }
    return threads;  // where fewer could be started, those do all the work
}

static void end_parallel(int threads) {
    if (threads > 1) pthread_mutex_unlock(&pool.in_use);
}

static void parallel(int threads, task_t run, void *context, int tasks) {
    if (threads < 2 || tasks < 2 || tasks > TASKS_MOST) {
        for (int task = 0; task < tasks; task++) run(context, task, 0);
        return;
    }
    pool.run = run;
    pool.context = context;
    atomic_store(&pool.finished, 0);
    uint64_t phase = (atomic_load(&pool.ticket) >> 47) + 1;
    atomic_store(&pool.ticket, phase << 47 | (uint64_t)threads << 40 | (uint64_t)tasks << 20);
    if (atomic_load(&pool.sleepers) > 0) {
        pthread_mutex_lock(&pool.sleeping);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.sleeping);
    }
    take_tasks(0);
    for (int spins = 0; atomic_load(&pool.finished) < tasks; spins++) {
        if (spins < SPINS) RELAX();
        else sched_yield();  // a thread of ours has lost its core
    }
}
