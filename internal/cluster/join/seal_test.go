package join

import (
	"bytes"
	"maps"
	"slices"
	"testing"
)

func TestSeal(t *testing.T) {
	secrets := map[string][]byte{"service.key": []byte("the key"), "etcd/peer-ca.crt": []byte("the authority")}
	sealed, err := Seal("token", secrets)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed.Data, []byte("the key")) {
		t.Error("the sealed data contain the key in plain text")
	}
	opened, err := sealed.Open("token")
	if err != nil || !maps.EqualFunc(opened, secrets, bytes.Equal) {
		t.Errorf("got %q, %v", opened, err)
	}
	again, err := Seal("token", secrets)
	if err != nil || bytes.Equal(again.Data, sealed.Data) || bytes.Equal(again.Salt, sealed.Salt) {
		t.Errorf("sealed twice alike, or %v", err)
	}

	changed := func(change func(*Sealed)) Sealed {
		s := Sealed{slices.Clone(sealed.Salt), slices.Clone(sealed.Nonce), slices.Clone(sealed.Data)}
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		sealed Sealed
		token  string
	}{
		"wrong token":   {sealed, "tokem"},
		"no token":      {sealed, ""},
		"changed data":  {changed(func(s *Sealed) { s.Data[0] ^= 1 }), "token"},
		"cut off":       {changed(func(s *Sealed) { s.Data = s.Data[:4] }), "token"},
		"another salt":  {changed(func(s *Sealed) { s.Salt[0] ^= 1 }), "token"},
		"another nonce": {changed(func(s *Sealed) { s.Nonce[0] ^= 1 }), "token"},
		"no nonce":      {changed(func(s *Sealed) { s.Nonce = nil }), "token"},
		"nothing":       {Sealed{}, "token"},
	} {
		if opened, err := test.sealed.Open(test.token); err == nil {
			t.Errorf("%s: got %q", name, opened)
		}
	}
}
