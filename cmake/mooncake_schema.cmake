# Generates one C++ header from each FlatBuffers schema in schema/; included as "NAME_generated.h".
function(mooncake_schema)
    find_program(FLATC flatc REQUIRED)
    file(GLOB schemas CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/schema/*.fbs)
    set(headers)
    foreach(schema ${schemas})
        get_filename_component(stem ${schema} NAME_WE)
        set(header ${CMAKE_BINARY_DIR}/schema/${stem}_generated.h)
        add_custom_command(OUTPUT ${header}
            COMMAND ${FLATC} --cpp --cpp-std c++17 --scoped-enums --gen-object-api -o ${CMAKE_BINARY_DIR}/schema ${schema}
            DEPENDS ${schema} VERBATIM)
        list(APPEND headers ${header})
    endforeach()
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/schema)
    add_custom_target(mooncake_schema DEPENDS ${headers})
endfunction()
