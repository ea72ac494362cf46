package objectcache

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestWritten(t *testing.T) {
	object := func(uid, version string) metav1.Object {
		return &metav1.ObjectMeta{UID: types.UID(uid), ResourceVersion: version}
	}
	var w Written[string]
	// expect begins a turn, and wants what was written over versions of objects a and b.
	expect := func(when, versionOfA, a, versionOfB, b string) {
		t.Helper()
		w.Turn()
		for of, want := range map[metav1.Object]string{object("a", versionOfA): a, object("b", versionOfB): b} {
			if got, is := w.Get(of); got != want || is != (want != "") {
				t.Errorf("%s, over version %s of %s was written %q (%t), want %q", when, of.GetResourceVersion(), of.GetUID(), got, is, want)
			}
		}
	}
	expect("at first", "1", "", "1", "")
	w.Set(object("a", "1"), "x")
	w.Set(object("b", "1"), "y")
	expect("while the cache is behind", "1", "x", "1", "y")
	// The API server has made version 2 of it, over which y2 is written.
	w.Set(object("b", "2"), "y2")
	expect("after a second write", "1", "x", "1", "y2")
	expect("when the cache has a version of a", "2", "", "1", "y2")
	expect("when the version of a is as before", "1", "", "1", "y2")
	w.Turn()
	expect("after a turn in which b was away", "1", "", "1", "")
}
