#[[
Finds tilec, and defines tilec_add_kernels.

  find_package(Tilec [VERSION] [REQUIRED])

sets Tilec_FOUND, Tilec_EXECUTABLE, Tilec_VERSION, and Tilec_CUDA_INCLUDE: the folder with cuda.h, of a CUDA toolkit or
of the Python package nvidia-cuda-runtime beside tilec. -DTilec_CUDA_INCLUDE=FOLDER says where else it lies.

  tilec_add_kernels(TARGET SOURCES FILE.tl… TARGETS sm_80 sm_90a… [DEFINES NAME=VALUE…] [OPTIONS --option…])

compiles each kernel file to a header of the same name, FILE.h, with the machine code of all TARGETS, which the sources of
TARGET can include, and lets TARGET see cuda.h. They are made again when a kernel file, a file that it imports, tilec or a target file of it changes.
]]

find_program(Tilec_EXECUTABLE NAMES tilec DOC "The tile compiler")
if(Tilec_EXECUTABLE)
  execute_process(COMMAND "${Tilec_EXECUTABLE}" --version OUTPUT_VARIABLE _tilec_said ERROR_QUIET)
  if(_tilec_said MATCHES "^tilec ([0-9.]+)")
    set(Tilec_VERSION "${CMAKE_MATCH_1}")
  endif()
  unset(_tilec_said)
endif()

get_filename_component(_tilec_folder "${Tilec_EXECUTABLE}" DIRECTORY)
file(GLOB _tilec_wheels "${_tilec_folder}/../lib/python3*/site-packages/nvidia/cu*/include")
find_path(
  Tilec_CUDA_INCLUDE cuda.h
  HINTS ENV CUDA_PATH ENV CUDA_HOME /usr/local/cuda ${_tilec_wheels}
  PATH_SUFFIXES include
  DOC "The folder with cuda.h")
unset(_tilec_folder)
unset(_tilec_wheels)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Tilec REQUIRED_VARS Tilec_EXECUTABLE VERSION_VAR Tilec_VERSION)
mark_as_advanced(Tilec_EXECUTABLE Tilec_CUDA_INCLUDE)

function(tilec_add_kernels target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;TARGETS;DEFINES;OPTIONS")
  if(NOT TARGET "${target}")
    message(FATAL_ERROR "tilec_add_kernels: there is no target ${target}")
  endif()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tilec_add_kernels: ${arg_UNPARSED_ARGUMENTS} is behind none of SOURCES, TARGETS, DEFINES, OPTIONS")
  endif()
  foreach(needed IN ITEMS SOURCES TARGETS)
    if(NOT arg_${needed})
      message(FATAL_ERROR "tilec_add_kernels: ${needed} are missing")
    endif()
  endforeach()

  # A list within the list, as TARGETS "${machines}" gives, arrives with its semicolons escaped.
  foreach(list IN ITEMS arg_SOURCES arg_TARGETS)
    string(REPLACE "\\;" ";" ${list} "${${list}}")
  endforeach()
  list(JOIN arg_TARGETS "," machines)
  list(TRANSFORM arg_DEFINES PREPEND "-D")
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${target}.kernels")
  file(MAKE_DIRECTORY "${folder}")
  set(headers "")
  foreach(source IN LISTS arg_SOURCES)
    get_filename_component(path "${source}" ABSOLUTE)
    get_filename_component(name "${source}" NAME_WLE)
    set(header "${folder}/${name}.h")
    if(header IN_LIST headers)
      message(FATAL_ERROR "tilec_add_kernels: two SOURCES of ${target} would both be ${name}.h")
    endif()
    list(APPEND headers "${header}")
    add_custom_command(
      OUTPUT "${header}"
      COMMAND "${Tilec_EXECUTABLE}" "${path}" --target "${machines}" --emit header -o "${header}" -MF "${header}.d"
              ${arg_DEFINES} ${arg_OPTIONS}
      DEPENDS "${path}" "${Tilec_EXECUTABLE}"
      DEPFILE "${header}.d"
      COMMENT "Compiling tile kernel ${source}"
      COMMAND_EXPAND_LISTS
      VERBATIM)
    target_sources("${target}" PRIVATE "${header}")
  endforeach()
  target_include_directories("${target}" PRIVATE "${folder}")
  if(Tilec_CUDA_INCLUDE)
    target_include_directories("${target}" SYSTEM PRIVATE "${Tilec_CUDA_INCLUDE}")
  endif()
  # dlopen, where the C library does not have it; as a property, which goes with both forms of target_link_libraries.
  set_property(TARGET "${target}" APPEND PROPERTY LINK_LIBRARIES ${CMAKE_DL_LIBS})
endfunction()
