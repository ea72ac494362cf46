package htpasswd

import (
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

// FuzzParse checks that users of a list have a hash that takes a bounded time, and that nobody
// is admitted whom the list does not name.
func FuzzParse(f *testing.F) {
	f.Add(list, "sha", "myPassword")
	f.Add("a:$2y$04$", "a", "")
	f.Add("a:$2y$31$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", "a", "b")
	f.Add("a:$apr1$$aaaaaaaaaaaaaaaaaaaaaa\r\nb:{SHA}x", "b", "")
	checker := NewChecker()
	f.Fuzz(func(t *testing.T, list, name, password string) {
		users := checker.Parse("a", "b", list)
		for of, hash := range users.hashes {
			if cost, err := bcrypt.Cost([]byte(hash)); err == nil && cost > maxCost {
				t.Errorf("%q has a hash of cost %d", of, cost)
			}
			if cost, err := bcrypt.Cost([]byte(hash)); err == nil && cost > bcrypt.MinCost {
				return // it would take too long
			}
		}
		is, err := users.Check(t.Context(), "c", name, password)
		if err != nil {
			t.Fatal(err)
		}
		if is && !strings.Contains(list, name+":") {
			t.Errorf("%q is admitted", name)
		}
	})
}
