# find_package(nibble) for those who use the library.
include(CMakePackageConfigHelpers)

install(TARGETS nibble_core EXPORT nibbleTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET nibble_cuda)
  set_target_properties(nibble_cuda PROPERTIES EXPORT_NAME cuda)
  install(TARGETS nibble_cuda EXPORT nibbleTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY include/nibble DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT nibbleTargets NAMESPACE nibble:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
install(FILES LICENSE THIRD_PARTY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(cmake/nibbleConfig.cmake.in ${PROJECT_BINARY_DIR}/nibbleConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/nibbleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/nibbleConfig.cmake ${PROJECT_BINARY_DIR}/nibbleConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
