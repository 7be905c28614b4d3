// The files of this folder are compiled once per level of the x86-64 instruction set (and once
// without levels on other CPUs), each time into a namespace with that level's name; `loops()` in
// kernels/cpu/loops.hpp returns the best ones for this CPU.
//
// If a function is compiled for a level and its name is used in other files as well (a template of
// the standard library, an inline function), the linker could use that version everywhere, and an
// older CPU would execute an illegal instruction. So these files include only <cstdint> and type
// traits of the standard library, call only functions of their own namespace and FLOW_HD ones
// (always inlined), and a test reads their symbols.
#pragma once

#ifndef FLOW_ISA
#error "FLOW_ISA is the namespace of the instruction set's level; CMake sets it"
#endif
