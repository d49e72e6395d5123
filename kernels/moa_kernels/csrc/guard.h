// Mapped files: bringing them in at once, and an end in a sentence where their pages can no longer be read (shortened,
// overwritten, or on a disk that fails): the system then sends SIGBUS, from which there is no way back.
#pragma once
#ifndef _WIN32
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARDS_MOST 1024
#define EXIT_UNREADABLE 74  // EX_IOERR of sysexits.h

static struct {
    pthread_mutex_t change;
    struct sigaction before;
    int is_set;
    struct {
        _Atomic(char *) sentence;  // NULL: the place is free
        uintptr_t begin, end;
    } guard[GUARDS_MOST];
} guards = {.change = PTHREAD_MUTEX_INITIALIZER};

static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < GUARDS_MOST; i++) {
        const char *sentence = atomic_load(&guards.guard[i].sentence);
        if (!sentence || at < guards.guard[i].begin || at >= guards.guard[i].end) continue;
        ssize_t written = write(STDERR_FILENO, sentence, strlen(sentence));
        (void)written;
        _exit(EXIT_UNREADABLE);
    }
    sigaction(signal_number, &guards.before, NULL);  // not ours: the access fails again, as it would have without us
}

int moa_guard(const void *begin, int64_t size, const char *sentence) {
    char *copy = strdup(sentence);
    int place = MOA_NO_MEMORY;
    pthread_mutex_lock(&guards.change);
    for (int i = 0; copy && place < 0 && i < GUARDS_MOST; i++)
        if (!atomic_load(&guards.guard[i].sentence)) place = i;
    if (place >= 0) {
        guards.guard[place].begin = (uintptr_t)begin, guards.guard[place].end = (uintptr_t)begin + (uintptr_t)size;
        atomic_store(&guards.guard[place].sentence, copy);
    } else free(copy);
    if (place >= 0 && !guards.is_set) {
        struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
        sigemptyset(&action.sa_mask);
        guards.is_set = sigaction(SIGBUS, &action, &guards.before) == 0;
    }
    pthread_mutex_unlock(&guards.change);
    return place;
}

void moa_unguard(int place) {
    pthread_mutex_lock(&guards.change);
    char *sentence = atomic_exchange(&guards.guard[place].sentence, NULL);
    free(sentence);
    pthread_mutex_unlock(&guards.change);
}
void moa_populate(const void *begin, int64_t size) {
#ifdef __linux__
    enum { POPULATE_READ = 22 };  // MADV_POPULATE_READ, which older headers lack
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)begin / page * page;
    (void)madvise((void *)start, (uintptr_t)begin + (uintptr_t)size - start, POPULATE_READ);  // else page by page, later
#else
    (void)begin, (void)size;
#endif
}
#else
int moa_guard(const void *begin, int64_t size, const char *sentence) {
    (void)begin, (void)size, (void)sentence;
    return MOA_NO_MEMORY;
}
void moa_unguard(int place) { (void)place; }
void moa_populate(const void *begin, int64_t size) { (void)begin, (void)size; }
#endif
