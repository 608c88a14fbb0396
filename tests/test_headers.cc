// The headers that all tests include, compiled once: CMakeLists.txt names them.
