// A library that can be loaded, under any name.
extern "C" int flow_loadable() { return 1; }
