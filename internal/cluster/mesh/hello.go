package mesh

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// A hello is a packet from a node to the Relay of a server. The Relay then sends datagrams for the node to the address from
// which the hello came, and tells this address to the node. Both packets are encrypted with the key of the node's stream.
const (
	helloStart = 2 + len(ID{})
	// helloPlain is the size of what is encrypted: a number and an address. The address of a hello is empty, so that the answer
	// is not longer than the question.
	helloPlain = 8 + addressSize
)

// SealHello returns a hello. Each must have a higher number than the one before.
func SealHello(session ID, key *Key, number uint64) []byte {
	return sealHello(KindHello, session, key, number, netip.AddrPort{})
}

func sealHello(kind Kind, session ID, key *Key, number uint64, seen netip.AddrPort) []byte {
	plain := binary.BigEndian.AppendUint64(make([]byte, 0, helloPlain), number)
	if seen.IsValid() {
		plain = appendAddress(plain, seen)
	}
	plain = plain[:helloPlain]
	return seal(append([]byte{magic, byte(kind)}, session[:]...), plain, key)
}

// HelloSession returns the session of a hello or of its answer, or false if the packet is too short.
func HelloSession(packet []byte) (session ID, ok bool) {
	if len(packet) < helloStart {
		return session, false
	}
	return ID(packet[2:]), true
}

// OpenHello returns the number of a hello, or the number and the address of the answer.
func OpenHello(packet []byte, key *Key) (number uint64, seen netip.AddrPort, err error) {
	if len(packet) < helloStart {
		return 0, seen, errors.New("the packet is too short")
	}
	plain, err := open(packet[helloStart:], key)
	if err != nil {
		return 0, seen, err
	}
	if len(plain) != helloPlain {
		return 0, seen, errors.New("the packet has another size than a hello")
	}
	return binary.BigEndian.Uint64(plain), address(plain[8:]), nil
}
