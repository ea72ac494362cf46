// Command imgtool writes container images from plain folders and serves them,
// without any image tool. The scripts and the test of tests/conformance call it.
//
//	imgtool build SPEC.json ARCHIVE       write the images of a specification
//	                                      into one OCI archive
//	imgtool unpack ARCHIVE NAME TAG DIR   unpack the archive's first image into
//	                                      the folders from which agnhost's
//	                                      fake-registry-server serves
//	imgtool serve DIR ADDRESS             serve the archives in DIR as a registry
//	                                      that is only read
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "build":
		err = build(args[1], args[2])
	case len(args) == 5 && args[0] == "unpack":
		err = unpack(args[1], args[2], args[3], args[4])
	case len(args) == 3 && args[0] == "serve":
		err = serve(args[1], args[2])
	default:
		fmt.Fprintln(os.Stderr, "usage: imgtool build SPEC.json ARCHIVE | unpack ARCHIVE NAME TAG DIR | serve DIR ADDRESS")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "imgtool:", err)
		os.Exit(1)
	}
}

// serve says on standard output when pulls are answered.
func serve(dir, address string) error {
	registry, err := newRegistry(dir)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("serving %d images on %s\n", len(registry.tags), address)
	server := http.Server{Handler: registry.handler(), ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(listener)
}
