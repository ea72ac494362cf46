package join

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestBootstrapTokens(t *testing.T) {
	client, ca := fake.NewClientset(), newAuthority(t)
	// The API server converts StringData in this way.
	client.PrependReactor("create", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		secret := action.(clienttesting.CreateAction).GetObject().(*corev1.Secret)
		secret.Data = map[string][]byte{}
		for key, value := range secret.StringData {
			secret.Data[key] = []byte(value)
		}
		return false, nil, nil
	})
	forever, err := CreateToken(t.Context(), client, ca, "", 0, "attic")
	if err != nil {
		t.Fatal(err)
	}
	short, err := CreateToken(t.Context(), client, ca, "", time.Hour, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []Token{forever, short} {
		if parsed, err := ParseToken(token.String()); err != nil || parsed != token || !IsBootstrapSecret(token.Secret) {
			t.Errorf("made %s: %v", token, err)
		}
	}
	tokens, err := ListTokens(t.Context(), client)
	if err != nil || len(tokens) != 2 {
		t.Fatalf("got tokens %v, %v, want two", tokens, err)
	}
	if first := tokens[0]; first.ID != short.Secret[:6] || first.Expires.IsZero() || !first.Joins {
		t.Errorf("first is %+v", first)
	}
	if last := tokens[1]; last.ID != forever.Secret[:6] || !last.Expires.IsZero() || last.Description != "attic" {
		t.Errorf("last is %+v", last)
	}
	for _, id := range []string{short.String(), forever.Secret[:6]} {
		if err := DeleteToken(t.Context(), client, id); err != nil {
			t.Error(err)
		}
	}
	if tokens, err := ListTokens(t.Context(), client); err != nil || len(tokens) != 0 {
		t.Errorf("got tokens %v, %v, want none after the deletion", tokens, err)
	}
	if err := DeleteToken(t.Context(), client, "abcdef"); err == nil || !strings.Contains(err.Error(), "abcdef") {
		t.Errorf("deleting a token that does not exist: got error %v, want one with its ID", err)
	}
}

// TestGivenToken makes a token of a secret that the user generated.
func TestGivenToken(t *testing.T) {
	ca := newAuthority(t)
	client := fake.NewClientset()
	secret := GenerateToken()
	token, err := CreateToken(t.Context(), client, ca, secret, 0, "")
	if err != nil || token.Secret != secret {
		t.Fatalf("got %v, %v, want %s", token, err, secret)
	}
	if _, err := ParseToken(token.String()); err != nil {
		t.Error(err)
	}
	if _, err := CreateToken(t.Context(), client, ca, "short", 0, ""); err == nil || strings.Contains(err.Error(), "short") {
		t.Errorf("a secret of another form: got %v", err)
	}
}
