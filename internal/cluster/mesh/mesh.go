// Package mesh has what nodes and servers say to each other for the flannel-backend mesh. Nodes send knocks, by which they
// find out how they reach each other. A Relay on each server passes on datagrams between nodes that have not found a direct
// way. The package node/mesh is the nodes' part. The boot lists in packages agent and server connect the two.
//
// A node has a stream to the Relay of each server, in its tunnel. The Relay also has a UDP port. WireGuard and the mesh share
// that port, because their packets begin with different bytes. Nodes encrypt datagrams for each other, so a Relay can
// neither read nor change them.
package mesh

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// DefaultPort is the UDP port of WireGuard and of the mesh, on every node and server.
const DefaultPort = 51820

// ID stands for a node in packets.
type ID [8]byte

// IDOf returns the ID of the node with a name. The server knows a node by its certificate, so no node can have the ID of
// another one.
func IDOf(node string) (id ID) {
	sum := sha256.Sum256([]byte(node))
	copy(id[:], sum[:])
	return id
}

// String returns the ID as hexadecimal digits.
func (i ID) String() string { return hex.EncodeToString(i[:]) }

// magic is the first byte of the mesh's own UDP packets. The first byte of WireGuard's is a number from 1 to 4.
const magic = 'k'

// Kind is what a packet of the mesh is.
type Kind byte

// The kinds of packets. A knock goes from node to node. A node sends a hello to a server, which answers with a seen. A node
// sends a datagram for another node to a server, which delivers it.
const (
	KindKnock Kind = 1 + iota
	KindHello
	KindSeen
	KindSend
	KindDeliver
)

// KindOf returns the kind of a packet, or false if the packet is not one of the mesh.
func KindOf(packet []byte) (Kind, bool) {
	if len(packet) < 2 || packet[0] != magic {
		return 0, false
	}
	return Kind(packet[1]), true
}

// Overhead is how many bytes a packet with a datagram is longer than the datagram.
const Overhead = 2 + len(ID{})

// Wrap returns the packet of a datagram. The node is the one that gets it, or the one that has sent it.
func Wrap(kind Kind, node ID, datagram []byte) []byte {
	packet := append(make([]byte, 0, Overhead+len(datagram)), magic, byte(kind))
	return append(append(packet, node[:]...), datagram...)
}

// Unwrap returns the node and the datagram of a packet that Wrap has made, or false if the packet is too short.
func Unwrap(packet []byte) (node ID, datagram []byte, ok bool) {
	if len(packet) < Overhead {
		return node, nil, false
	}
	return ID(packet[2:Overhead]), packet[Overhead:], true
}

// ParseID reads what String has written.
func ParseID(text string) (id ID, err error) {
	bytes, err := hex.DecodeString(text)
	if err != nil || len(bytes) != len(id) {
		return id, fmt.Errorf("%q is not the ID of a node", text)
	}
	return ID(bytes), nil
}
