// Linked into every library: the hash of the sources that it was built from (variants.py), so that a library that
// is older than the Python around it is noticed when it is loaded.
#ifdef _WIN32
__declspec(dllexport)
#else
__attribute__((visibility("default")))
#endif
const char *moa_source_hash(void) { return MOA_SOURCE_HASH; }
