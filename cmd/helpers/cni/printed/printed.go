// Package printed calls functions of CNI plugins within a process. These functions are made for programs of their own: they print their results.
package printed

import (
	"fmt"
	"io"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
)

// Result calls a function of a plugin, and returns what it has printed.
//
//upstream:relies-on github.com/containernetworking/cni/pkg/types/types.go PrintResult
func Result(call func(*skel.CmdArgs) error, args *skel.CmdArgs) ([]byte, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("catch the result: %w", err)
	}
	defer reader.Close()
	stdout := os.Stdout
	os.Stdout = writer
	read := make(chan []byte)
	go func() {
		text, _ := io.ReadAll(reader) // a pipe of this process
		read <- text
	}()
	err = call(args)
	os.Stdout = stdout
	writer.Close()
	return <-read, err
}
