# The compiler of the release wheel: clang and libc++ as zig brings them (`pip install ziglang`), with the
# symbols of glibc 2.17, which clusters have had since 2014. The C++ library is linked in. `zig` is
# looked for in PATH, where setup.py puts the one of the package.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
find_program(ZIG zig)
if(NOT ZIG)
  message(FATAL_ERROR "zig is missing: pip install -r release/requirements.txt")
endif()
set(CMAKE_CXX_COMPILER ${ZIG} c++ -target x86_64-linux-gnu.2.17)
# zig adds debug information, which takes a quarter of the time and ten times the size of the rest.
set(CMAKE_CXX_FLAGS_INIT -g0)
# -s: leaves symbols out. -rtlib=none: memcpy and its like would be plain
# ones of zig's runtime library; those of glibc, chosen for the processor, need 0.7 of the time of an allreduce of
# 1 MiB. The divisions of 128 bits in libc++ are then gcc's, which is linked in too.
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s -rtlib=none -Wl,--no-undefined")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-s -rtlib=none")
execute_process(COMMAND g++ -print-libgcc-file-name
  OUTPUT_VARIABLE LIBGCC OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT LIBGCC)
  message(FATAL_ERROR "g++ is missing, whose libgcc.a is linked in: apt-get install g++")
endif()
set(CMAKE_CXX_STANDARD_LIBRARIES_INIT ${LIBGCC})

# A release is always compiled whole. A folder at a time takes a third of the time of single files.
set(RDMACOLL_UNITY ON CACHE BOOL "Compile a folder of the engine at a time")

# zig switches off what its target lacks, registers of 512 bits too: -mavx512f alone leaves them off.
set(RDMACOLL_AVX512_OPTIONS -mevex512)

# Some Python.h include a header beside them that is only found from here. It comes last, since the other headers
# are of another C library.
set(RDMACOLL_PYTHON_OPTIONS -idirafter /usr/include)

# The header alone, by a link: in its folder are those of this system's C library, which is another one.
find_path(VERBS_OF_SYSTEM infiniband/verbs.h PATHS /usr/include /usr/local/include)
if(VERBS_OF_SYSTEM)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/verbs)
  file(CREATE_LINK ${VERBS_OF_SYSTEM}/infiniband ${CMAKE_BINARY_DIR}/verbs/infiniband SYMBOLIC)
  set(VERBS_INCLUDE_DIR ${CMAKE_BINARY_DIR}/verbs CACHE PATH "where infiniband/verbs.h is")
endif()
