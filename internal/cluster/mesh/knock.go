package mesh

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/crypto/nacl/box"
	"golang.org/x/crypto/nacl/secretbox"
)

// Key is a key of Curve25519, or one that two nodes have in common.
type Key [32]byte

// MarshalText implements encoding.TextMarshaler, in the form in which WireGuard writes keys.
func (k Key) MarshalText() ([]byte, error) { return base64.StdEncoding.AppendEncode(nil, k[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Key) UnmarshalText(text []byte) error {
	bytes, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil || len(bytes) != len(k) {
		return fmt.Errorf("%q is not a key", text)
	}
	copy(k[:], bytes)
	return nil
}

// NewKeys makes a pair of keys.
func NewKeys() (public, private Key, err error) {
	publicKey, privateKey, err := box.GenerateKey(rand.Reader)
	if err != nil {
		return public, private, fmt.Errorf("make keys: %w", err)
	}
	return *publicKey, *privateKey, nil
}

// Shared returns the key that the owner of private shares with the one of public.
func Shared(public, private Key) (shared Key) {
	box.Precompute((*[32]byte)(&shared), (*[32]byte)(&public), (*[32]byte)(&private))
	return shared
}

// Message says what a knock is for.
type Message byte

// The messages. A ping asks for a pong on the same way. A pong has the address from which the ping came, if it came
// directly. A call has the addresses at which its sender may be reached, so that the other node knocks at them. An answer to
// a call has those of the other node.
const (
	Ping Message = 1 + iota
	Pong
	Call
	Answer
)

// MaxAddresses is how many addresses a knock may have.
const MaxAddresses = 16

// Knock is a message between two nodes.
type Knock struct {
	Message Message
	// Number is that of the ping in a pong. Each other knock of a node has a higher one than those before.
	Number    uint64
	Addresses []netip.AddrPort
	// Padding is how many bytes follow, which mean nothing. They show that a packet of a size arrives.
	Padding int
}

const (
	nonceSize   = 24
	addressSize = 18
	// knockStart is where the encrypted part of a knock begins, and knockHead is how long that is without addresses.
	knockStart = 2 + len(ID{}) + nonceSize
	knockHead  = 1 + 8 + 1
	// KnockSize is the size in bytes of the packet of a knock without addresses and padding.
	KnockSize = knockStart + secretbox.Overhead + knockHead
)

// Seal returns the packet of a knock. from is its sender, and key the one that sender and receiver share.
func (k *Knock) Seal(from ID, key *Key) []byte {
	plain := make([]byte, 0, knockHead+len(k.Addresses)*addressSize+k.Padding)
	plain = append(plain, byte(k.Message))
	plain = binary.BigEndian.AppendUint64(plain, k.Number)
	plain = append(plain, byte(len(k.Addresses)))
	for _, address := range k.Addresses {
		plain = appendAddress(plain, address)
	}
	plain = plain[:len(plain)+k.Padding]
	packet := append([]byte{magic, byte(KindKnock)}, from[:]...)
	return seal(packet, plain, key)
}

// ErrUnknown is the error of OpenKnock if there is no key for the sender.
var ErrUnknown = errors.New("the sender of the knock is unknown")

// OpenKnock returns the sender and the content of the packet of a knock. keyOf returns the key that is shared with a node, or
// nil.
func OpenKnock(packet []byte, keyOf func(ID) *Key) (from ID, knock *Knock, err error) {
	if len(packet) < KnockSize {
		return from, nil, errors.New("the knock is too short")
	}
	from = ID(packet[2:])
	key := keyOf(from)
	if key == nil {
		return from, nil, ErrUnknown
	}
	plain, err := open(packet[2+len(from):], key)
	if err != nil {
		return from, nil, err
	}
	knock = &Knock{Message: Message(plain[0]), Number: binary.BigEndian.Uint64(plain[1:])}
	count, rest := int(plain[9]), plain[knockHead:]
	if count > MaxAddresses || len(rest) < count*addressSize {
		return from, nil, fmt.Errorf("the knock has %d addresses in %d bytes", count, len(rest))
	}
	for range count {
		knock.Addresses = append(knock.Addresses, address(rest))
		rest = rest[addressSize:]
	}
	knock.Padding = len(rest)
	return from, knock, nil
}

// seal appends a nonce and plain, encrypted, to packet.
func seal(packet, plain []byte, key *Key) []byte {
	var nonce [nonceSize]byte
	_, _ = rand.Read(nonce[:]) // it never fails
	return secretbox.Seal(append(packet, nonce[:]...), plain, &nonce, (*[32]byte)(key))
}

// open decrypts what seal has appended.
func open(sealed []byte, key *Key) ([]byte, error) {
	if len(sealed) < nonceSize {
		return nil, errors.New("the packet is too short")
	}
	plain, ok := secretbox.Open(nil, sealed[nonceSize:], (*[nonceSize]byte)(sealed), (*[32]byte)(key))
	if !ok {
		return nil, errors.New("the packet is not encrypted with the key of its sender")
	}
	return plain, nil
}

func appendAddress(to []byte, address netip.AddrPort) []byte {
	bytes := address.Addr().As16()
	return binary.BigEndian.AppendUint16(append(to, bytes[:]...), address.Port())
}

// address reads what appendAddress has written.
func address(from []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(from)).Unmap(), binary.BigEndian.Uint16(from[16:]))
}
