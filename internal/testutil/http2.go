package testutil

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// RawHTTP2 sends the first request of a connection of HTTP/2, with header fields that no client library
// sends. fields are names and values, in the order in which they are sent. It returns the status and the body
// of the answer. It fails if the server ends the stream or the connection without an answer.
func RawHTTP2(conn net.Conn, fields ...string) (status int, body string, err error) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return 0, "", fmt.Errorf("encode header: %w", err)
		}
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = io.WriteString(conn, http2.ClientPreface)
	if err == nil {
		err = framer.WriteSettings()
	}
	if err == nil {
		err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	}
	if err != nil {
		return 0, "", fmt.Errorf("send request: %w", err)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return 0, "", fmt.Errorf("read answer: %w", err)
		}
		ended := false
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			if status, err = strconv.Atoi(frame.PseudoValue("status")); err != nil {
				return 0, "", fmt.Errorf("read status: %w", err)
			}
			ended = frame.StreamEnded()
		case *http2.DataFrame:
			body, ended = body+string(frame.Data()), frame.StreamEnded()
		case *http2.RSTStreamFrame:
			return 0, "", fmt.Errorf("the stream ends: %s", frame.ErrCode)
		}
		if ended {
			return status, body, nil
		}
	}
}
