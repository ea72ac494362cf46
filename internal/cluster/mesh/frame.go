package mesh

import (
	"encoding/binary"
	"fmt"
	"io"
)

// frameKind is what a frame of a stream between a node and a Relay is.
type frameKind byte

// The frames. The Relay begins with a welcome. A frame of data has a datagram for another node, or from one. A Relay that
// does not know the node for which a datagram is answers with a frame gone.
const (
	frameWelcome frameKind = 1 + iota
	frameData
	frameGone
)

const (
	// MaxDatagram is the size in bytes of the longest datagram that a Relay passes on.
	MaxDatagram = 2048
	frameHead   = 1 + len(ID{}) + 2
)

// frame is a message of a stream.
type frame struct {
	kind    frameKind
	id      ID
	payload []byte
}

// appendFrame appends a frame to buffer.
func appendFrame(buffer []byte, kind frameKind, id ID, payload []byte) []byte {
	buffer = append(append(buffer, byte(kind)), id[:]...)
	buffer = binary.BigEndian.AppendUint16(buffer, uint16(len(payload)))
	return append(buffer, payload...)
}

// readFrame reads a frame. Its payload is in buffer, which has MaxDatagram bytes.
func readFrame(r io.Reader, buffer []byte) (f frame, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	f.kind, f.id = frameKind(head[0]), ID(head[1:])
	size := int(binary.BigEndian.Uint16(head[9:]))
	if size > len(buffer) {
		return f, fmt.Errorf("a frame has %d bytes, more than %d", size, len(buffer))
	}
	f.payload = buffer[:size]
	_, err = io.ReadFull(r, f.payload)
	return f, err
}
