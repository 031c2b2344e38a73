"""The look: every contrast that look.md promises, and figures that follow the theme."""

import re

import pytest

from widgets import look

THEMES = [look.LIGHT, look.DARK]
GROUNDS = ["ground", "panel"]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("token", look.TOKENS)
def test_marks_have_three_to_one(token, ground, theme):
    assert look.contrast(look.TOKENS[token][theme], look.NEUTRAL[ground][theme]) >= 3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("token", look.TOKENS)
def test_words_have_four_and_a_half_to_one(token, ground, theme):
    assert look.contrast(look.TEXT[token][theme], look.NEUTRAL[ground][theme]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("token", look.TOKENS)
def test_soft_fills_carry_ink_and_their_own_word(token, theme):
    fill = look.soft(token, theme)
    assert look.contrast(look.NEUTRAL["ink"][theme], fill) >= 7
    assert look.contrast(look.TEXT[token][theme], fill) >= 3.5  # for large labels only


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", GROUNDS)
def test_neutrals(ground, theme):
    behind = look.NEUTRAL[ground][theme]
    assert look.contrast(look.NEUTRAL["ink"][theme], behind) >= 7
    assert look.contrast(look.NEUTRAL["muted"][theme], behind) >= 4.5
    assert look.contrast(look.NEUTRAL["control"][theme], behind) >= 3


def test_contrast_matches_the_published_examples():
    assert look.contrast("#FFFFFF", "#000000") == pytest.approx(21)
    assert look.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)


def test_every_token_has_a_text_variant_and_all_colours_are_hex():
    assert look.TEXT.keys() == look.TOKENS.keys()
    for table in (look.TOKENS, look.TEXT, look.NEUTRAL):
        for pair in table.values():
            assert all(re.fullmatch(r"#[0-9A-F]{6}", value) for value in pair)


def test_a_light_colour_stands_for_one_dark_colour_only_where_marks_and_words_agree():
    """`themed` maps a light colour to one property, so two properties of one colour must both be legible in
    dark."""
    seen = {}
    for name, value in look.properties(look.LIGHT).items():
        first = seen.setdefault(value, name)
        dark = look.properties(look.DARK)
        if first != name:
            assert look.contrast(dark[first], look.NEUTRAL["panel"][look.DARK]) >= 4.5, (first, name)


def test_css_names_every_property_in_both_themes():
    css = look.css()
    for theme in THEMES:
        for name, value in look.properties(theme).items():
            assert f"{name}: {value};" in css
    assert 'html[data-theme="dark"]' in css and "data-jp-theme-light" in css


def test_a_matplotlib_figure_follows_the_theme_and_is_the_same_every_time():
    import matplotlib.pyplot as plt

    def draw(alt):
        with look.matplotlib_style():
            fig, ax = plt.subplots()
            ax.plot([1, 2, 3], [1, 4, 9], color=look.color("query"))
            ax.set_xlabel("N (tokens)")
            return look.figure(fig, alt=alt, caption="Measured.").data

    one, again, other = draw("It grows."), draw("It grows."), draw("It shrinks.")
    assert one == again
    assert "var(--ft-query, #0072b2)" in one and "var(--ft-ink, #1c2128)" in one
    assert 'role="img" aria-label="It grows."' in one and "<figcaption>Measured.</figcaption>" in one
    assert ">N (tokens)</text>" in one  # words stay words
    ids = set(re.findall(r'id="([^"]+)"', one))
    assert ids and not ids & set(re.findall(r'id="([^"]+)"', other))
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', one))
    for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', one):
        assert (a or b) in ids
    assert "fill: white" not in one and "#ffffff" not in one  # transparent ground


def test_figure_takes_svg_text_and_refuses_what_it_cannot_show():
    shown = look.figure('<svg viewBox="0 0 1 1"><path d="M0 0"/></svg>', alt='A "dot".').data
    assert 'aria-label="A &quot;dot&quot;."' in shown
    with pytest.raises(ValueError, match="alt"):
        look.figure("<svg></svg>", alt=" ")
    with pytest.raises(ValueError, match="picture"):
        look.figure("<p>no</p>", alt="Nothing.")
    with pytest.raises(ValueError, match="'qury'"):
        look.color("qury")
