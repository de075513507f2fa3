"""The names of units by their symbols: SI's with their prefixes, and those of trades, sciences and kitchens.

The symbols and names are those of Unicode's CLDR, with what shops, recipes, laboratories and computers write besides.
"""

from __future__ import annotations

from collections.abc import Iterator

from vaak.text.speech.words import table, words

PREFIXES = table(
    "Y=yotta Z=zetta E=exa P=peta T=tera G=giga M=mega k=kilo h=hecto da=deca d=deci c=centi m=milli μ=micro n=nano "
    "p=pico f=femto a=atto"
)
_PREFIXED = table(
    """
    m=meter:k_d_c_m_μ_n g=gram:k_m_μ_n_p_f_T L=liter:m_c_d_μ_n_h_M_G l=liter:m_c_d_μ_n_h s=second:m_μ_n_p_f_a
    A=amp:m_μ_n_p_k Hz=hertz/hertz:k_M_G_T_m W=watt:k_M_G_T_m_μ V=volt:k_M_m_μ_n Wh=watt_hour:k_M_G_T
    J=joule:k_M_G_T_P_m_μ_n eV=electron_volt:k_M_G_T_m Pa=pascal:k_M_G_h_m N=newton:k_m_μ Ω=ohm:k_M_G_m
    F=farad:μ_n_p_m H=henry/henries:m_μ_n T=tesla:m_μ_n mol=mole:k_m_μ_n_p M=molar/molar:m_μ_n_p Sv=sievert:m_μ_n
    Gy=gray:m_c_k Bq=becquerel:k_M_G_T B=byte:k_K_M_G_T_P_E_Z b=bit:k_K_M_G_T_P bit=bit:k_K_M_G_T
    B/s=byte_per_second/bytes_per_second:k_K_M_G_T bps=bit_per_second/bits_per_second:k_K_M_G_T
    bit/s=bit_per_second/bits_per_second:k_M_G_T bar=bar:m cal=calorie:k pc=parsec:k_M_G bp=base_pair:k_M_G
    Da=dalton:k_M VA=volt-amp:k_M Wp=watt_peak/watts_peak:k_M lx=lux/lux:k lm=lumen:k Ah=amp_hour:m
    Nm=newton_meter:k_m N-m=newton_meter:k_m Ci=curie:m_μ_n_p Gyr=billion_years/billion_years U=unit:m
    IU=international_unit:m_k FLOPS=flops/flops:M_G_T_P_E Torr=torr/torr:m S=siemens/siemens:m_μ_n rad=radian:m
    t=ton:M_G V/m=volt_per_meter/volts_per_meter:k_m Eq=equivalent:m Osm=osmole:m Pa-s=pascal_second:m
    """
)
"""A unit, its name, and the prefixes with which it is written."""
_NOT_ALONE = frozenset(words("F H M S U b B bps bp Eq Gyr Ci Osm IU"))
"""These need a prefix, or a separate rule."""
_BINARY = table("Ki=kibi Mi=mebi Gi=gibi Ti=tebi")
_CONFUSED = frozenset(words("pm am as"))
"""Symbols with a prefix that are more often something else (p.m., a.m., as)."""

_OTHER = table(
    """
    %=percent/percent ‰=per_mille/per_mille ‱=basis_point m=meter m/s=meter_per_second/meters_per_second
    m/s²=meter_per_second_squared/meters_per_second_squared m/s2=meter_per_second_squared/meters_per_second_squared
    mcg=microgram mcL=microliter mcl=microliter t=ton tn=ton cwt=hundredweight gr=gram ft=foot/feet yd=yard
    yds=yard mi=mile lb=pound lbs=pound oz=ounce oz_t=troy_ounce ozt=troy_ounce ozs=ounce gal=gallon gals=gallon
    qt=quart qts=quart pt=pint in=inch/inches tbsp=tablespoon Tbsp=tablespoon tbs=tablespoon tbsps=tablespoon
    tsps=teaspoon tsp=teaspoon Tsp=teaspoon fl_oz=fluid_ounce fl._oz.=fluid_ounce floz=fluid_ounce
    nmi=nautical_mile NM=nautical_mile fth=fathom mil=mil mils=mil ac=acre ha=hectare bu=bushel bbl=barrel
    bbls=barrel acre-ft=acre-foot/acre-feet ac-ft=acre-foot/acre-feet ac_ft=acre-foot/acre-feet deg=degree °=degree
    °C=degree_Celsius/degrees_Celsius °_C=degree_Celsius/degrees_Celsius ºC=degree_Celsius/degrees_Celsius
    °F=degree_Fahrenheit/degrees_Fahrenheit °_F=degree_Fahrenheit/degrees_Fahrenheit °K=kelvin
    °R=degree_Rankine/degrees_Rankine deg_C=degree_Celsius/degrees_Celsius
    deg_F=degree_Fahrenheit/degrees_Fahrenheit degC=degree_Celsius/degrees_Celsius
    degF=degree_Fahrenheit/degrees_Fahrenheit arcmin=arcminute arcmins=arcminute arcsec=arcsecond arcsecs=arcsecond
    sr=steradian sec=second secs=second min=minute mins=minute h=hour hr=hour hrs=hour d=day wk=week wks=week
    mo=month mos=month mth=month mths=month yr=year yrs=year msec=millisecond msecs=millisecond usec=microsecond
    μsec=microsecond nsec=nanosecond mph=mile_per_hour/miles_per_hour kph=kilometer_per_hour/kilometers_per_hour
    km/h=kilometer_per_hour/kilometers_per_hour kmh=kilometer_per_hour/kilometers_per_hour
    kmph=kilometer_per_hour/kilometers_per_hour kt=knot kts=knot kn=knot mpg=mile_per_gallon/miles_per_gallon
    MPG=mile_per_gallon/miles_per_gallon kmpl=kilometer_per_liter/kilometers_per_liter
    fps=frame_per_second/frames_per_second rpm=revolution_per_minute/revolutions_per_minute
    bpm=beat_per_minute/beats_per_minute BPM=beat_per_minute/beats_per_minute wpm=word_per_minute/words_per_minute
    cpm=count_per_minute/counts_per_minute spm=step_per_minute/steps_per_minute
    gpm=gallon_per_minute/gallons_per_minute GPM=gallon_per_minute/gallons_per_minute
    cfm=cubic_foot_per_minute/cubic_feet_per_minute CFM=cubic_foot_per_minute/cubic_feet_per_minute
    cfs=cubic_foot_per_second/cubic_feet_per_second lpm=liter_per_minute/liters_per_minute
    bpd=barrel_per_day/barrels_per_day ips=inch_per_second/inches_per_second dpi=dot_per_inch/dots_per_inch
    ppi=pixel_per_inch/pixels_per_inch dpcm=dot_per_centimeter/dots_per_centimeter
    ppcm=pixel_per_centimeter/pixels_per_centimeter lpi=line_per_inch/lines_per_inch px=pixel MP=megapixel
    ppm=part_per_million/parts_per_million ppb=part_per_billion/parts_per_billion
    ppt=part_per_trillion/parts_per_trillion ppg=point_per_game/points_per_game
    rpg=rebound_per_game/rebounds_per_game apg=assist_per_game/assists_per_game wt%=weight_percent/weight_percent
    vol%=volume_percent/volume_percent mol%=mole_percent/mole_percent psi=P_S_I/P_S_I PSI=P_S_I/P_S_I
    psig=P_S_I_G/P_S_I_G psia=P_S_I_A/P_S_I_A mmHg=millimeter_of_mercury/millimeters_of_mercury
    mm_Hg=millimeter_of_mercury/millimeters_of_mercury inHg=inch_of_mercury/inches_of_mercury
    in_Hg=inch_of_mercury/inches_of_mercury cmH2O=centimeter_of_water/centimeters_of_water atm=atmosphere
    inches_Hg=inch_of_mercury/inches_of_mercury kgf=kilogram-force/kilograms-force lbf=pound-force/pounds-force
    ft-lb=foot-pound ft-lbs=foot-pound lb-ft=pound-foot/pound-feet lbf-ft=pound-force-foot/pound-force-feet
    in-lb=inch-pound in-lbs=inch-pound hp=horsepower/horsepower HP=horsepower/horsepower
    bhp=brake_horsepower/brake_horsepower Btu=B_T_U BTU=B_T_U BTUs=B_T_U MMBtu=million_B_T_U/million_B_T_U
    kcals=kilocalorie Kcal=kilocalorie cals=calorie Cal=calorie dB=decibel dBA=decibel dBm=D_B_M/D_B_M
    dBi=D_B_I/D_B_I cd=candela/candelas Wb=weber K=kelvin AU=astronomical_unit au=astronomical_unit ly=light-year
    kly=thousand_light-years/thousand_light-years
    Mly=million_light-years/million_light-years Gly=billion_light-years/billion_light-years
    M☉=solar_mass/solar_masses R☉=solar_radius/solar_radii L☉=solar_luminosity/solar_luminosities
    M⊙=solar_mass/solar_masses R⊙=solar_radius/solar_radii M⊕=Earth_mass/Earth_masses R⊕=Earth_radius/Earth_radii
    mya=million_years_ago/million_years_ago Mya=million_years_ago/million_years_ago
    kya=thousand_years_ago/thousand_years_ago Ga=billion_years/billion_years Ma=million_years/million_years
    ka=thousand_years/thousand_years Gyr=billion_years/billion_years Myr=million_years/million_years
    kyr=thousand_years/thousand_years Gya=billion_years_ago/billion_years_ago amu=atomic_mass_unit bps=basis_point
    bp=base_pair cc=cc/cc gsm=G_S_M/G_S_M ct=carat mmol/L=millimole_per_liter/millimoles_per_liter
    Mcf=thousand_cubic_feet/thousand_cubic_feet Bcf=billion_cubic_feet/billion_cubic_feet
    Tcf=trillion_cubic_feet/trillion_cubic_feet doz=dozen/dozen pkg=package pkgs=package pkt=packet pkts=packet
    pts=point pcs=piece pct=percent/percent wkt=wicket wkts=wicket pk=pack pks=pack ml=milliliter kgs=kilogram
    kms=kilometer gm=gram gms=gram grs=gram ltr=liter ltrs=liter mtr=meter mtrs=meter mts=meter mls=milliliter
    mgs=milligram
    cms=centimeter mms=millimeter MT=metric_ton VDC=volts_D_C/volts_D_C VAC=volts_A_C/volts_A_C
    Vdc=volts_D_C/volts_D_C Vac=volts_A_C/volts_A_C kWe=kilowatt_electric/kilowatts_electric
    MWe=megawatt_electric/megawatts_electric cl=centiliter RPM=revolution_per_minute/revolutions_per_minute
    FPS=frame_per_second/frames_per_second IU=international_unit I.U.=international_unit ga=gauge/gauge
    sqft=square_foot/square_feet sqm=square_meter sqin=square_inch/square_inches sqkm=square_kilometer
    mEq/L=milliequivalent_per_liter/milliequivalents_per_liter
    """
)
_OTHER_CASE = table(
    """
    kg=KG_Kg_KGS_Kgs km=KM_Km_KMS_Kms_k.m. cm=CM_Cm mm=MM ml=ML_Ml mg=MG_Mg ft=FT_Ft lb=LB_Lb lbs=LBS_Lbs oz=OZ_Oz
    gal=GAL_Gal mph=MPH_Mph kph=KPH km/h=KM/H_Km/h kmh=KMH kHz=khz_KHz_KHZ_Khz MHz=mhz_MHZ_Mhz GHz=ghz_GHZ_Ghz
    Hz=hz_HZ kW=KW_Kw_kw kWh=KWh_KWH_Kwh_kwh MWh=MWH GWh=gWh kV=KV_kv GB=gb MB=mb TB=tb Mbps=mbps_MBPS
    Gbps=gbps_GBPS Kbps=KBPS mAh=MAH_mah hrs=Hrs_HRS hr=Hr mins=Mins_MINS min=MIN_Min sec=Sec secs=Secs
    yrs=Yrs_YRS yr=Yr_YR wks=Wks_WKS pcs=PCS_Pcs cc=CC_C.C. dB=db_DB ltr=Ltr_LTR ltrs=Ltrs doz=Doz psi=Psi
    """
)
"""Symbols that are also written in other capitals."""
_SQUARED_UNITS = ("in", "ft", "yd", "mi", "m", "km", "cm", "mm")
_SQUARE = (("sq", "sq."), "square"), (("cu", "cu."), "cubic")


def plural(names: str) -> str:
    """The plural of a unit's names.

    >>> plural("foot/feet"), plural("gram")
    ('feet', 'grams')
    """
    one, _, many = names.partition("/")
    return many or f"{one}s"


def _list_prefixed() -> Iterator[tuple[str, str]]:
    for symbol, written in _PREFIXED.items():
        names, _, prefixes = written.partition(":")
        if symbol not in _NOT_ALONE:
            yield symbol, names
        one, _, many = names.partition("/")
        for prefix in prefixes.split():
            name = PREFIXES.get(prefix, "kilo")
            if prefix + symbol not in _CONFUSED:
                yield prefix + symbol, f"{name}{one}/{name}{many}" if many else f"{name}{one}"
    for prefix, name in _BINARY.items():
        yield f"{prefix}B", f"{name}byte"


def _list_squares() -> Iterator[tuple[str, str]]:
    for unit in _SQUARED_UNITS:
        one, many = _OTHER.get(unit, dict(_list_prefixed()).get(unit, "")).partition("/")[::2]
        for shorts, name in _SQUARE:
            for short in shorts:
                for written in (f"{short} {unit}", f"{short} {unit}.", f"{short.capitalize()} {unit}"):
                    yield written, f"{name} {one}/{name} {many or one + 's'}"


def _list_other_cases(known: dict[str, str]) -> Iterator[tuple[str, str]]:
    for symbol, others in _OTHER_CASE.items():
        for other in others.split():
            yield other, known[symbol]


UNITS_WITH_STOP = table(
    "c.=cup T.=tablespoon t.=teaspoon tab.=tablet tabs.=tablet cap.=capsule caps.=capsule pt.=pint pts.=point "
    "ct.=count/count pc.=piece pcs.=piece env.=envelope sl.=slice bn.=bunch/bunches"
)
"""Units only with a full stop, within a sentence: 2 c. flour, but 14 Geo. 3 c. 59."""
NAME_BY_UNIT = dict(_list_prefixed()) | dict(_list_squares()) | _OTHER
NAME_BY_UNIT |= dict(_list_other_cases(NAME_BY_UNIT)) | UNITS_WITH_STOP
"""Unit → its name; the plural is separated by a slash where it isn't the name with an s."""
BARE = frozenset(
    one.replace("_", " ")
    for one in words("""
    kg km cm mm ml mL mg lbs lb oz mph km/h kph kHz MHz GHz kWh kW GB MB TB Mbps Gbps hrs mins mmHg mcg μm nm kPa
    hPa mmol mol kcal sq_ft sq._ft. tbsp tsp m² km² cm² m³ m/s ft² kJ mAh m/s² μg μL kV mA ng GPa MPa
    """)
)
"""Symbols that can be nothing else, so that they need no figure: sold by the kg, weight (lbs)."""
