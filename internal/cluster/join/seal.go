package join

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/crypto/scrypt"
)

// Sealed is data encrypted under a token's secret. DECISIONS.md says why its format is
// kedge's own.
type Sealed struct {
	Salt  []byte `json:"salt"`
	Nonce []byte `json:"nonce"`
	Data  []byte `json:"data"`
}

// The parameters of scrypt are those that its documentation recommends for
// interactive use: 32 MiB, and a tenth of a second. A user's token may be weak.
const (
	scryptN, scryptR, scryptP = 1 << 15, 8, 1
	sealKeySize               = 32
	saltSize                  = 16
)

// sealedFor binds sealed data to its purpose.
const sealedFor = "kedge server secrets 1"

// Seal encrypts secrets, a map by name, under a token's secret.
func Seal(secret string, secrets map[string][]byte) (Sealed, error) {
	plain, err := json.Marshal(secrets)
	if err != nil {
		return Sealed{}, fmt.Errorf("encode secrets: %w", err)
	}
	s := Sealed{Salt: make([]byte, saltSize)}
	// crypto/rand never returns an error: it ends the process instead.
	_, _ = rand.Read(s.Salt)
	cipher, err := s.cipher(secret)
	if err != nil {
		return Sealed{}, err
	}
	s.Nonce = make([]byte, cipher.NonceSize())
	_, _ = rand.Read(s.Nonce)
	s.Data = cipher.Seal(nil, s.Nonce, plain, []byte(sealedFor))
	return s, nil
}

// Open decrypts what Seal has encrypted. It fails if secret is not the same.
func (s Sealed) Open(secret string) (map[string][]byte, error) {
	cipher, err := s.cipher(secret)
	if err != nil {
		return nil, err
	}
	wrong := errors.New("the cluster's secrets cannot be decrypted with this token")
	if len(s.Nonce) != cipher.NonceSize() {
		return nil, wrong
	}
	plain, err := cipher.Open(nil, s.Nonce, s.Data, []byte(sealedFor))
	if err != nil {
		return nil, wrong
	}
	var secrets map[string][]byte
	if err := json.Unmarshal(plain, &secrets); err != nil {
		return nil, fmt.Errorf("decode secrets: %w", err)
	}
	return secrets, nil
}

func (s Sealed) cipher(secret string) (cipher.AEAD, error) {
	key, err := scrypt.Key([]byte(secret), s.Salt, scryptN, scryptR, scryptP, sealKeySize)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make cipher: %w", err)
	}
	return cipher.NewGCM(block)
}
